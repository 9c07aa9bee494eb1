"""How the benchmark and its helpers in the hosts talk: one JSON line there, one back."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

ANSWER = "ANSWER "


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """In a helper: answer orders from standard input until it closes."""
    print(ANSWER + "{}", flush=True)
    for line in sys.stdin:
        print(ANSWER + json.dumps(answer(json.loads(line))), flush=True)


class Helper:
    """A helper process as the benchmark sees it.

    Args:
        name: For messages.
        process: Started with pipes for standard input and output.
        timeout_s: How long any answer may take.
    """

    def __init__(self, name: str, process: subprocess.Popen[str], timeout_s: float = 120.0) -> None:
        self._name = name
        self._process = process
        self._timeout_s = timeout_s
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self._wait()

    def ask(self, **order: Any) -> dict[str, Any]:
        """Send an order and wait for its answer.

        Raises:
            RuntimeError: It ended, or did not answer in time.
        """
        if self._process.stdin is None:
            raise RuntimeError(f"{self._name} takes no orders")
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._wait()

    def close(self) -> None:
        """Let it end."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            return  # it ends with its host

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line)
        self._lines.put(None)

    def _wait(self) -> dict[str, Any]:
        while True:
            try:
                line = self._lines.get(timeout=self._timeout_s)
            except queue.Empty:
                raise RuntimeError(f"{self._name}: no answer in {self._timeout_s} s") from None
            if line is None:
                raise RuntimeError(f"{self._name} ended with {self._process.wait()}")
            if line.startswith(ANSWER):
                found: dict[str, Any] = json.loads(line[len(ANSWER) :])
                return found
