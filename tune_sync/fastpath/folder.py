"""The directory in shared memory that all of one user's checkpoints share."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tune_sync.process import is_orphan

SHARED_MEMORY = Path("/dev/shm")


def folder_of(root: Path) -> Path:
    """Where this user's is, below the shared memory `root`."""
    return root / f"tune_sync-{os.getuid()}"


def make_private(folder: Path) -> None:
    """Make it, so that only this user may enter.

    Raises:
        OSError: It cannot be made, or others may have put something into the one that is there.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    _check(folder)


def _check(folder: Path) -> None:
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is open to others; remove it")
    if found.st_mode & 0o077:  # made anew by who found it gone; nobody else could put anything in
        folder.chmod(0o700)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make it, as `make_private` does; nobody else has it locked, or removes it, meanwhile."""
    descriptor = _lock(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(folder: Path) -> int:
    while True:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        try:
            _check(folder)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # whoever used it last was just removing it
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), folder.lstat()):
                return descriptor
        os.close(descriptor)


def remove_empty(folder: Path) -> None:
    """Remove it, if nobody has anything there."""
    with suppress(OSError), locked(folder):
        folder.rmdir()


def sweep(folder: Path) -> list[str]:
    """Remove what processes that have ended left in `folder`; return the names."""
    orphans = [entry for entry in folder.iterdir() if is_orphan(entry.name)]
    for entry in orphans:
        with suppress(FileNotFoundError):
            entry.unlink()
    return [entry.name for entry in orphans]
