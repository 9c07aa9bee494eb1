"""Where nodes stage: on their disks, and in shared memory."""

from __future__ import annotations

import errno
import logging
import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tune_sync.behind.memory_home import Memory
from tune_sync.errors import ConfigError, StoreDeniedError
from tune_sync.fastpath.budget import Budget
from tune_sync.fastpath.folder import SHARED_MEMORY, folder_of
from tune_sync.homes.disk import cannot_be_made
from tune_sync.spec import Options

logger = logging.getLogger("ray.tune_sync")

_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a node cannot stage on its disk.

    Attributes:
        why: With the way out.
        is_hopeless: No report can stage there at all, also not in memory: there can be no such
            directory. Else what is reported takes another way.
    """

    why: str
    is_hopeless: bool


def staging_root(given: str) -> Path:
    """Where nodes stage: what was given, or a directory of this user's below the temporary one.

    Raises:
        StoreDeniedError: Somebody else has made that one, and could read what is staged.
    """
    root = _named_root(given)
    if not given:
        with suppress(OSError):  # it is there; or whoever writes there says what is wrong
            root.mkdir(mode=0o700)
        _check_is_ours(root)
    return root


def _named_root(given: str) -> Path:
    return Path(given or Path(tempfile.gettempdir(), f"tune_sync-{os.getuid()}"))


def _check_is_ours(root: Path) -> None:
    with suppress(FileNotFoundError):
        found = root.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise StoreDeniedError(
                errno.EACCES,
                f"{root} is not a directory of user {os.getuid()}: what is staged there could be "
                "read and changed by others; remove it, or give SyncConfig(staging_dir=...)",
            )


def trouble_of(given: str) -> Trouble | None:
    """Whether this node's staging directory can be made, and be written. Leaves nothing.

    Returns:
        Why that cannot be; None if it can, or if the disk is full: there may be room later, and
        checkpoints that find none go to their destination.
    """
    root = _named_root(given)
    try:
        if not given:
            _check_is_ours(root)
        with suppress(FileNotFoundError, NotADirectoryError):
            root.lstat()  # says what is wrong with the name
        _try_to_write(root)
    except StoreDeniedError as error:
        return Trouble(str(error.strerror), is_hopeless=True)
    except ConfigError as error:
        return Trouble(str(error), is_hopeless=True)
    except OSError as error:
        if error.errno in _FULL:
            return None
        why = f"{root} cannot be written to by uid {os.getuid()}: {error.strerror or error}"
        way_out = "make it writable there, or give another staging_dir"
        return Trouble(f"{why}; {way_out}", is_hopeless=False)
    return None


def _try_to_write(root: Path) -> None:
    """Write in `root`; or, where it is not there, where it would be made.

    A file without a name: a kill leaves nothing.
    """
    at = next(above for above in (root, *root.parents) if os.path.lexists(above))
    if not at.is_dir():
        raise cannot_be_made(root, at, "staging_dir")
    try:
        with tempfile.TemporaryFile(dir=at) as file:
            file.write(b"x")
            file.flush()
    except FileNotFoundError as error:
        if at == root:
            raise
        raise cannot_be_made(root, at, "staging_dir") from error


def memory_of(options: Options, owner: str, node: str) -> Memory | None:
    """Where a run stages in shared memory of a node; None if it does not."""
    if not options.memory_dir:
        return None
    budget = Budget(Path(options.memory_dir), options.memory_limit_bytes)
    root = budget.folder / owner / node
    return Memory(root, budget, options.max_checkpoints_in_memory)


def staging_roots(options: Options) -> list[Path]:
    """Where a node may have staging of runs, also of those with other settings."""
    return [folder_of(Path(options.memory_dir or SHARED_MEMORY)), staging_root(options.staging_dir)]


def open_memory(options: Options, owner: str, node: str) -> Memory | None:
    """Where a run stages in memory; None if it does not, or there is none to be used."""
    memory = memory_of(options, owner, node)
    if memory is not None:
        try:
            with memory.budget.opened():
                memory.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            logger.warning("node %s: %s; checkpoints are staged on its disk", node, error)
            return None
    return memory
