"""Where nodes stage: on their disks, and in shared memory."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from tune_sync.behind.memory_home import Memory
from tune_sync.errors import ConfigError, StoreDeniedError
from tune_sync.fastpath.budget import Budget
from tune_sync.fastpath.folder import SHARED_MEMORY, folder_of
from tune_sync.homes.disk import make_directory
from tune_sync.spec import Options

_FULL = (errno.ENOSPC, errno.EDQUOT)


def staging_root(given: str) -> Path:
    """Where nodes stage: what was given, or a directory of this user's below the temporary one.

    Raises:
        StoreDeniedError: Somebody else has made that one, and could read what is staged.
    """
    if given:
        return Path(given)
    root = Path(tempfile.gettempdir(), f"tune_sync-{os.getuid()}")
    with suppress(OSError):  # it is there; or whoever writes there says what is wrong
        root.mkdir(mode=0o700)
    with suppress(FileNotFoundError):
        found = root.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise StoreDeniedError(
                errno.EACCES,
                f"{root} is not a directory of user {os.getuid()}: what is staged there could be "
                "read and changed by others; remove it, or give SyncConfig(staging_dir=...)",
            )
    return root


def why_unusable(given: str) -> str:
    """Make this node's staging directory, and write there.

    Returns:
        Why that cannot be, with the way out; "" if it can, or if the disk is full: there may be
        room later, and checkpoints that find none go to their destination.
    """
    try:
        root = staging_root(given)
    except StoreDeniedError as error:
        return str(error.strerror)
    try:
        make_directory(root, "staging_dir")
        with tempfile.NamedTemporaryFile(dir=root, prefix=".probe-") as file:
            file.write(b"x")
            file.flush()
    except ConfigError as error:
        return str(error)
    except OSError as error:
        if error.errno in _FULL:
            return ""
        why = f"{root} cannot be written to by uid {os.getuid()}: {error.strerror or error}"
        return f"{why}; make it writable there, or give another staging_dir"
    return ""


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
