"""Lets the threads of one process copy files one after the other, where each needs much memory.

pyarrow copies a directory in eight threads, and Ray lets each use buffers of 64 MiB: more than
the whole of our budget. Whoever opens a stream takes the turn, and others wait in `open`, before
they fill a buffer.

The thread that has the turn passes, however many streams it opens, and if it neither works nor
closes for `PATIENCE_S`, another goes ahead. While any thread is in a call, nobody does: the memory
would be used twice. So a home that hangs holds up all until the call ends, with `sync_timeout`;
the others would not get further there either.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Copying threads go from one call to the next within milliseconds. One that does not, waits for
# something else, perhaps for a thread that waits here: then memory is the lesser evil.
PATIENCE_S = 10.0


class Turn:
    """Methods may be called from any thread.

    Args:
        patience_s: See `PATIENCE_S`.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._thread: int | None = None
        self._open_count = 0
        self._calls_count = 0
        self._active_s = 0.0
        self._changed = threading.Condition()

    def enter(self) -> Callable[[], None]:
        """Wait for the turn and take it; returns what gives it back, once."""
        me = threading.get_ident()
        with self._changed:
            while self._thread not in (None, me):
                left_s = self._active_s + self._patience_s - time.monotonic()
                if self._calls_count:
                    left_s = self._patience_s
                elif left_s <= 0:
                    self._open_count = 0  # it is overdue: what it closes later does not count
                    break
                self._changed.wait(left_s)
            self._thread = me
            self._open_count += 1
            self._active_s = time.monotonic()
        return lambda: self._leave(me)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Whoever has the turn is not idle inside of this."""
        with self._changed:
            self._calls_count += 1
        try:
            yield
        finally:
            with self._changed:
                self._calls_count -= 1
                self._active_s = time.monotonic()

    def _leave(self, thread: int) -> None:
        with self._changed:
            if thread != self._thread:
                return
            self._open_count -= 1
            if not self._open_count:
                self._thread = None
                self._changed.notify_all()


class InTurn:
    """A file object that keeps the turn from when it is opened until it is closed or dropped.

    Args:
        turn: The turn.
        open_file: Makes the file object, once it is our turn.
    """

    def __init__(self, turn: Turn, open_file: Callable[[], Any]) -> None:
        self._turn = turn
        self._leave: Callable[[], None] | None = None
        self._leave = turn.enter()
        try:
            self._file = open_file()
        except BaseException:
            self._end()
            raise

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return bool(self._file.closed)

    def read(self, length_bytes: int = -1) -> Any:
        """Bytes from the file."""
        with self._turn.working():
            return self._file.read(length_bytes)

    def write(self, data: Any) -> int:
        """Put bytes into the file."""
        with self._turn.working():
            return int(self._file.write(data))

    def close(self) -> None:
        """Close the file. May be called twice."""
        try:
            with self._turn.working():
                self._file.close()
        finally:
            self._end()

    def __getattr__(self, name: str) -> Any:
        if name == "_file":  # it was never opened
            raise AttributeError(name)
        return getattr(self._file, name)

    def __del__(self) -> None:
        self._end()

    def _end(self) -> None:
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


# One for all that a process copies: what is bounded is the process's memory.
COPYING = Turn()
