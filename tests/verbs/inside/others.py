"""Other processes of a test, which answer questions.

Each is a fork of one that has all modules loaded: to load them takes seconds in a guest.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [f"tests.verbs.inside.{name}" for name in ("keeper", "elsewhere", "replica_node")]
)
Answers = Mapping[str, Callable[[dict[str, Any]], Any]]


class Other:
    """One of them.

    Args:
        main: What it does, given its end of a connection and `arguments`: `serve`, in the end.
        arguments: More for `main`.

    Attributes:
        told: What it said first.
    """

    def __init__(self, main: Callable[..., None], *arguments: object) -> None:
        self._connection, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=main, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()
        self.told = self._answer()

    def ask(self, do: str, **fields: Any) -> Any:
        self._connection.send({"do": do, **fields})
        return self._answer()

    def fileno(self) -> int:
        """A descriptor whose other end is closed when the process ends."""
        return self._connection.fileno()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def _answer(self) -> Any:
        try:
            return self._connection.recv()
        except EOFError:
            self.process.join()
            raise AssertionError(f"the process ended: {self.process.exitcode}") from None


@contextmanager
def running(main: Callable[..., None], *arguments: object) -> Iterator[Other]:
    """Another process, until the block ends."""
    other = Other(main, *arguments)
    try:
        yield other
    finally:
        other.kill()


def serve(connection: Connection, told: object, answers: Answers) -> None:
    """Say `told`, then answer until the test closes the connection."""
    connection.send(told)
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        connection.send(answers[request["do"]](request))
