"""`locked`: the lock of a lease, which who takes it, refreshes it or moves it aside holds."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tune_sync.errors import ConfigError, LeaseHeldError
from tune_sync.homes import kinds

# The lock is held for milliseconds, unless its holder is stopped just then.
LOCK_TRIES = 200
LOCK_TRY_S = 0.05
# How often a directory may be moved aside while its lock is waited for.
MOVED_TRIES = 3
# What a file system without locks says.
NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the lock of the lease `file`. Whoever moves a directory aside holds it, too.

    Raises:
        LeaseHeldError: Another process holds it for long.
        ConfigError: The file system has no locks.
        OSError: The file cannot be opened, or is a link.
    """
    path = file.with_suffix(".lock")
    for last in (False,) * MOVED_TRIES + (True,):
        with kinds.open_lock(path) as lock:
            _lock(lock)
            try:
                # Else its directory was moved aside while we waited. Inodes of some disks differ.
                if last or _is_at(lock, path):
                    yield
                    return
            finally:  # to close it does not, while a process lives that was forked just now
                with suppress(OSError):
                    fcntl.flock(lock, fcntl.LOCK_UN)


def _lock(lock: IO[str]) -> None:
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(LOCK_TRY_S)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            raise ConfigError(
                f"{lock.name} cannot be locked ({error.strerror}): its file system has no "
                "flock; mount it with that (Lustre: -o flock), or give another storage_path"
            ) from error
    raise LeaseHeldError(
        f"{lock.name} is held for over {LOCK_TRIES * LOCK_TRY_S:.0f} s; "
        "is one of this experiment's drivers stopped? End it, and try again"
    )


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
