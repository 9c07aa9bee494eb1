"""How much of a node's shared memory is taken, by all runs of one user, and may still be.

Each attempt says what it takes by the length of an empty file beside its bytes. So what is removed
no longer counts, whoever removed it, and nothing has to be put right after a crash.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tune_sync.errors import StoreDeniedError, StoreFullError
from tune_sync.fastpath.folder import folder_of, locked, sweep
from tune_sync.fastpath.pages import memory_available_bytes, room_bytes
from tune_sync.fastpath.sizing import SPARE
from tune_sync.process import is_own

TAKES = "takes"


class Budget:
    """Methods may be called from any thread and process of the node.

    Args:
        root: Shared memory.
        limit_bytes: Most that may be taken. 0: half of what is free, and of what is taken.
    """

    def __init__(self, root: Path, limit_bytes: int = 0) -> None:
        self.folder = folder_of(root)
        self._limit_bytes = limit_bytes

    @contextmanager
    def opened(self) -> Iterator[None]:
        """The directory is there, and stays for who puts something into it meanwhile.

        Raises:
            StoreDeniedError: There is no shared memory that is private to this user.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.folder))
            except OSError as error:
                raise StoreDeniedError(
                    error.errno or errno.EACCES, f"no shared memory in {self.folder}: {error}"
                ) from error
            yield

    def take(self, attempt: Path, more_bytes: int, ready_bytes: int = 0) -> None:
        """Let an attempt take more; all of it, or nothing.

        Args:
            attempt: Its directory, which is there.
            more_bytes: How much.
            ready_bytes: How much of that counts already: of slots that become its files.

        Raises:
            StoreFullError: There is not so much left; names the sizes.
        """
        with locked(self.folder):
            self._check(more_bytes, ready_bytes)
            _grow(attempt, more_bytes)

    def move(self, source: Path, target: Path, size_bytes: int) -> None:
        """One directory takes so much less, and another so much more: its files moved there."""
        with locked(self.folder):
            for attempt, more_bytes in ((source, -size_bytes), (target, size_bytes)):
                _grow(attempt, more_bytes)

    def has(self, more_bytes: int, ready_bytes: int = 0) -> bool:
        """Whether so much is left, without what killed processes left behind. See `take`."""
        try:
            self._check(more_bytes, ready_bytes)
        except StoreFullError:
            with suppress(OSError):
                return bool(sweep(self.folder)) and self.has(more_bytes, ready_bytes)
            return False
        return True

    @property
    def taken_bytes(self) -> int:
        """By all attempts, and by slots of processes."""
        return sum(_sizes(self.folder))

    @property
    def ready_bytes(self) -> int:
        """Of slots of this process that are no file elsewhere."""
        found = [_stat(entry) for entry in _entries(self.folder) if is_own(entry.name)]
        return sum(one.st_size for one in found if one is not None and one.st_nlink == 1)

    def _check(self, more_bytes: int, ready_bytes: int = 0) -> None:
        taken_bytes, needed_bytes = self.taken_bytes, max(0, more_bytes - ready_bytes)
        free_bytes, total_bytes = room_bytes(self.folder)
        available_bytes = memory_available_bytes()
        limit_bytes = self._limit_bytes or _half(free_bytes, available_bytes, taken_bytes)
        if taken_bytes + needed_bytes > limit_bytes:
            passed = f"the memory limit of {limit_bytes} bytes"
        elif free_bytes - more_bytes < total_bytes * SPARE:
            passed = "what is free"
        elif 0 <= available_bytes < needed_bytes:
            passed = f"the {available_bytes} bytes that this machine, or its container, has left"
        else:
            return
        raise StoreFullError(
            errno.ENOSPC,
            f"{more_bytes} bytes more pass {passed} (checkpoints take {taken_bytes}, {free_bytes} "
            f"of {total_bytes} are free in {self.folder.parent}, {SPARE:.0%} stay free)",
        )


def _grow(attempt: Path, more_bytes: int) -> None:
    descriptor = os.open(attempt / TAKES, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, max(0, os.fstat(descriptor).st_size + more_bytes))
    finally:
        os.close(descriptor)


def _half(free_bytes: int, available_bytes: int, taken_bytes: int) -> int:
    if available_bytes >= 0:
        free_bytes = min(free_bytes, available_bytes)
    return (free_bytes + taken_bytes) // 2


def _sizes(folder: Path) -> Iterator[int]:
    """What each attempt takes, and each file that is of none."""
    entries = _entries(folder)
    takes = [entry for entry in entries if entry.name == TAKES]
    for entry in takes or entries:  # what is beside it is what it counts
        if entry.is_dir(follow_symlinks=False):
            yield from _sizes(Path(entry))
        elif found := _stat(entry):
            yield found.st_size


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except FileNotFoundError:  # it is being removed
        return []


def _stat(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
