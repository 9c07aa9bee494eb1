"""One slot: a file in shared memory whose pages are warm, and that holds one checkpoint at a time.

A filled slot becomes a file of the user by a second hard link, so no byte is copied. When that
link goes (the next save replaces it, or the user deletes it), and nobody else has the file open or
mapped, the slot may be filled again. The kernel says so: it gives a *write lease* only on a file
that nobody else has open.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import mmap
import os
import signal
from collections.abc import Callable
from pathlib import Path

from tune_sync.fastpath.pages import warm
from tune_sync.process import owned_name


class State(enum.Enum):
    """Whether a slot may be filled."""

    FREE = "free"
    TAKEN = "taken"  # its checkpoint is still somebody's
    SPOILED = "spoiled"  # somebody wrote into the file: its pages are not those that are mapped


class Slot:
    """A mapped file of `capacity_bytes`.

    Args:
        folder: A directory in shared memory that only this user may enter.
        capacity_bytes: Size of the file, and of every checkpoint in it.
    """

    def __init__(self, folder: Path, capacity_bytes: int) -> None:
        self.path = folder / owned_name()
        self.capacity_bytes = capacity_bytes
        self.is_busy = False
        self.is_kept = False
        self.on_close: list[Callable[[], None]] = []
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(self._file, capacity_bytes)
            self.memory = mmap.mmap(self._file, capacity_bytes)
        except BaseException:
            self._remove()
            raise
        self._seen = (0, 0)

    def warm(self, threads: int | None = None) -> None:
        """Give all pages their memory. Raises OSError where there is not so much."""
        warm(self._file, self.memory, threads)
        self.mark()

    def mark(self) -> None:
        """Remember what the file looks like: nobody may have changed it when it is filled again."""
        found = os.fstat(self._file)
        self._seen = (found.st_size, found.st_mtime_ns)

    @property
    def state(self) -> State:
        """Whether the slot may be filled, as far as the file tells. Busy slots are the pool's."""
        found = os.fstat(self._file)
        if found.st_nlink > 1:
            return State.TAKEN
        if found.st_nlink == 0 or (found.st_size, found.st_mtime_ns) != self._seen:
            return State.SPOILED
        return State.FREE if self._is_ours_alone() else State.TAKEN

    def allow_reading(self, mode: int) -> None:
        """Set the permissions that the file has for others once it is linked."""
        os.fchmod(self._file, mode)

    def close(self) -> None:
        """Give the memory back. A checkpoint that is linked elsewhere stays as it is."""
        for step in self.on_close:
            step()
        self.on_close.clear()
        with contextlib.suppress(BufferError):  # somebody still looks at it: it goes with them
            self.memory.close()
        self._remove()

    def _remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        os.close(self._file)

    def _is_ours_alone(self) -> bool:
        try:
            # A lease that is broken sends a signal; the default one would end this process.
            fcntl.fcntl(self._file, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(self._file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            return False
        fcntl.fcntl(self._file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True
