"""Calls on files that also hold on network file systems, whose manners differ from a local disk's.

| what they do | what is done here |
|---|---|
| ESTALE: a handle of something that another host replaced | once more, from the path on |
| no fsync of directories, or none at all | left out; of files it is said once, in the log |
| a removed file that is still open stays as `.nfs…` | its directory stays until the next sweep |
| "not there" from a cache | the directory is opened, which refreshes it |
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

from tune_sync.errors import ConfigError
from tune_sync.homes.kinds import refuse_other

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})

# What a file is called that was removed while somebody has it open: by NFS, and by FUSE.
HELD_OPEN = (".nfs", ".fuse_hidden")

# How long what another node did may stay unseen here. NFS refreshes what is opened at once; object
# stores behind FUSE may take a few seconds. Longer would hold up Ray's control loop for longer when
# something does not come at all.
VISIBLE_WITHIN_S = 10.0
POLL_S = 0.1

REMOVE_TRIES = 3

_P = ParamSpec("_P")
_T = TypeVar("_T")


def make_directory(path: Path, setting: str) -> None:
    """Make a directory and its parents; fine if it is there.

    Raises:
        ConfigError: There can be none: a file is in its way, or it would be below /proc or the
            like. It says so, and names what can be changed: `setting`.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileNotFoundError, FileExistsError, NotADirectoryError) as error:
        at = next(above for above in (path, *path.parents) if os.path.lexists(above))
        raise cannot_be_made(path, at, setting) from error


def cannot_be_made(path: Path, at: Path, setting: str) -> ConfigError:
    """The error where there can be no directory, because of what is at the place of one above."""
    why = f"no directory can be made in {at}" if at.is_dir() else f"{at} is no directory"
    return ConfigError(f"{path} cannot be made: {why}; give another {setting}")


def reopened(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Do a call once more if it met a stale handle: the second one looks its path up anew."""

    @functools.wraps(call)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return call(*args, **kwargs)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
        return call(*args, **kwargs)

    return wrapper


def fsync(descriptor: int, path: Path) -> None:
    """Make durable what a descriptor is open on, as far as its file system can."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        if not path.is_dir():
            _say_no_fsync(os.fspath(path.anchor), os.fstat(descriptor).st_dev)


@functools.cache
def _say_no_fsync(anchor: str, device: int) -> None:
    logger.warning(
        "a file system in use (device %d) cannot make files durable (no fsync): what its server "
        "has not written yet is lost if that crashes", device,
    )  # fmt: skip


def walk(top: Path) -> Iterator[tuple[Path, list[str]]]:
    """A directory and all below it, each with the names of its files.

    Raises:
        OSError: One cannot be listed: nobody may take what is in it for seen.
    """
    for base, _, names in os.walk(top, onerror=_fail):
        yield Path(base), names


def _fail(error: OSError) -> None:
    raise error


def remove_tree(path: Path) -> None:
    """Remove a directory and what is below; fine if it is not there.

    Files that somebody on this node still has open may stay, under a hidden name, with the
    directories above them. They go when they are closed, and the directories at the next sweep.

    Raises:
        NotADirectoryError: It is none, or a link; names it.
        OSError: It cannot be removed.
    """
    refuse_other(path)  # a FIFO would be waited for
    for _ in range(REMOVE_TRIES):  # a late writer may put a file into a directory being emptied
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
    try:
        shutil.rmtree(path)
    except OSError:
        if not _holds_only_open_files(path):
            raise


def _holds_only_open_files(path: Path) -> bool:
    try:
        names = [name for _, names in walk(path) for name in names]
    except OSError:
        return False
    return bool(names) and all(name.startswith(HELD_OPEN) for name in names)


def refresh(path: Path) -> None:
    """Let the file system look again at what the directory above `path` holds.

    NFS asks its server whenever a directory is opened ("close to open"), and if that has changed it
    forgets which names were not there.
    """
    try:
        os.close(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError:
        return


def wait_until(
    holds: Callable[[], bool], patience_s: float,
    clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> bool:  # fmt: skip
    """Look until something holds or time is up; returns whether it does. Looks at least once."""
    deadline_s = clock() + patience_s
    while not holds():
        if clock() >= deadline_s:
            return False
        sleep(POLL_S)
    return True
