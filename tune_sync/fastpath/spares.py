"""Spare files: large ones of attempts that were removed, whose pages the next ones are written to.

The kernel clears each page of shared memory that is made, which takes longer than to fill one that
is there. So a large file of what an agent removes is not unlinked but moved, if nobody has it open
or mapped, and moved again to where one of about its size is going to be written. What it held is
written over; who writes keeps count of how much was, as its length does not tell that any more.

```
<shared memory>/tune_sync-<user>/<name of the agent's process>.spare
```

They count as what slots of a process do, are swept as those if it is killed, and go before anything
else where room is needed.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from tune_sync.fastpath.folder import locked, sweep
from tune_sync.fastpath.leases import why_not_leased
from tune_sync.fastpath.pages import memory_available_bytes, room_bytes
from tune_sync.fastpath.sizing import SPARE, UNUSED_BYTES, UNUSED_PART
from tune_sync.fastpath.takes import TAKES, entries_of, grow, stat_of, taken_bytes
from tune_sync.process import is_own, owned_name

SUFFIX = ".spare"
# Beside the bytes of an attempt with files that a user has made, who makes new ones each time: for
# nobody would spare ones be kept.
GIVEN = "given"
# New pages for less take some milliseconds.
LARGE_BYTES = 8 << 20
# Of each agent: whoever looks for one goes through them all.
MOST_COUNT = 64
# Who reports less often loses little by making new pages.
IDLE_S = 300.0


class Spares:
    """Those that the agent of a run makes. Methods may be called from any thread; none raises.

    Args:
        memory: The run's directory in shared memory, on this node.
    """

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._folder = memory.parents[1]
        self._is_closed = False

    def keep(self, attempt: Path) -> None:
        """Take the large files of an attempt that nobody finds any more, as far as they are free.

        Never more than the run has staged in memory.
        """
        with suppress(OSError):
            is_given = (attempt / GIVEN).exists()
            if self._is_closed or is_given or not (attempt / TAKES).exists():
                return
            most_bytes = taken_bytes(self._memory)
            for base, _, names in os.walk(attempt / "data"):
                for name in names:
                    self._keep_file(attempt, Path(base, name))
            self.trim(most_bytes)

    def trim(self, most_bytes: int | None = None) -> None:
        """Remove what is too much, or too old; and all, where memory is short.

        Args:
            most_bytes: Most that may stay. None: as much as the run has staged now.
        """
        with suppress(OSError):
            sweep(self._folder)  # what an agent left that was killed
            own = [one for one in _found(self._folder) if is_own(one[0].name)]
            has_bytes = sum(found.st_size for _, found in own)
            if own and most_bytes is None:
                most_bytes = taken_bytes(self._memory)
            if self._is_closed or (own and _is_short(self._folder, has_bytes)):
                most_bytes = 0
            for number, (path, found) in enumerate(own, 1):
                is_much = has_bytes > (most_bytes or 0) or len(own) - number >= MOST_COUNT
                if is_much or time.time() - found.st_mtime > IDLE_S:
                    path.unlink(missing_ok=True)
                    has_bytes -= found.st_size

    def close(self) -> None:
        """Remove them all, with those of processes that were killed, and keep none any more."""
        self._is_closed = True
        self.trim()
        with suppress(OSError):
            sweep(self._folder)

    def _keep_file(self, attempt: Path, path: Path) -> None:
        found = path.lstat()
        is_whole = found.st_blocks * 512 >= found.st_size >= LARGE_BYTES
        if not (stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and is_whole):
            return
        spare = self._folder / f"{owned_name()}{SUFFIX}"
        with locked(self._folder):
            path.rename(spare)  # first: nobody can open it by its name after it was looked at
            if not _is_free(spare):
                spare.unlink()
                return
            os.utime(spare)
            grow(attempt, -found.st_size)


def take(attempt: Path, path: Path, need_bytes: int, folder: Path) -> int:
    """Put a spare file into the place of one that is about to be written, if there is one like it.

    Args:
        attempt: Its directory, which takes the bytes from now on.
        path: The new file, which is not there; its directory is.
        need_bytes: How long it will be; it is so long on return.
        folder: See the module's text.

    Returns:
        How many bytes that saves; 0 if there is none. What they are is anything.
    """
    if need_bytes < LARGE_BYTES or not _alike(folder, need_bytes):
        return 0
    with suppress(OSError), locked(folder):
        for spare, found in _alike(folder, need_bytes):
            if found.st_nlink > 1 or not _is_free(spare):  # somebody came to it after all
                spare.unlink()
                continue
            saved_bytes = min(found.st_size, need_bytes)
            mode = _mode_of_new(path)
            try:
                spare.chmod(mode)
                os.truncate(spare, need_bytes)
                spare.rename(path)
                grow(attempt, saved_bytes)
            except OSError:  # such as one that was given up just now
                path.unlink(missing_ok=True)
                continue
            return saved_bytes
    return 0


def give_up(folder: Path, need_bytes: int) -> bool:
    """Remove so much of them, whosever they are; returns whether there was any."""
    gone_bytes = 0
    for path, found in _found(folder):
        if gone_bytes and gone_bytes >= need_bytes:
            break
        with suppress(FileNotFoundError):  # somebody has taken it
            path.unlink()
            gone_bytes += found.st_size
    return gone_bytes > 0


def spare_bytes(folder: Path) -> int:
    """How large all of them are, which give way to anything else."""
    return sum(found.st_size for _, found in _found(folder))


def is_own_slot(name: str) -> bool:
    """Whether a file there is a slot of this process, and no spare file."""
    return is_own(name) and not name.endswith(SUFFIX)


def _found(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """All spare files, the oldest first."""
    entries = (entry for entry in entries_of(folder) if entry.name.endswith(SUFFIX))
    found = [(Path(entry), known) for entry in entries if (known := stat_of(entry)) is not None]
    return sorted(found, key=lambda one: one[1].st_mtime_ns)


def _alike(folder: Path, need_bytes: int) -> list[tuple[Path, os.stat_result]]:
    """Those of about a size, the nearest first."""
    sizes = [(abs(one[1].st_size - need_bytes), one) for one in _found(folder)]
    most_bytes = max(UNUSED_BYTES, need_bytes * UNUSED_PART)
    return [one for off, one in sorted(sizes, key=lambda s: s[0]) if off <= most_bytes]


def _is_short(folder: Path, has_bytes: int) -> bool:
    free_bytes, total_bytes = room_bytes(folder)
    return free_bytes < total_bytes * SPARE or 0 <= memory_available_bytes() < has_bytes


def _is_free(path: Path) -> bool:
    """Whether nobody has it open or mapped; not where the kernel does not tell."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return not why_not_leased(descriptor, fcntl.F_WRLCK)
    finally:
        os.close(descriptor)


def _mode_of_new(path: Path) -> int:
    """Make an empty file, which must not be there, to see which mode it gets."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        return stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
