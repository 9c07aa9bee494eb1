"""Says what is waited for, whenever nothing else was said for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

QUIET_S = 5.0


class Waiting:
    """A thread that fills silences, in a `with` block.

    Args:
        tell: Prints a line, and calls `heard`.
        quiet_s: Seconds without a line after which it says what is waited for.
    """

    def __init__(self, tell: Callable[[str], None], quiet_s: float = QUIET_S) -> None:
        self._tell = tell
        self._quiet_s = quiet_s
        self._what = "something"
        self._last_s = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._fill, daemon=True)

    def waits_for(self, what: str) -> None:
        """What silences are of from now on."""
        self._what = what

    def heard(self) -> None:
        """A line was printed."""
        self._last_s = time.monotonic()

    def _fill(self) -> None:
        while not self._is_over.wait(self._left_s()):
            if self._left_s() <= 0:
                self._tell(f"... waiting for {self._what}")

    def _left_s(self) -> float:
        return max(0.0, self._last_s + self._quiet_s - time.monotonic())

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()
