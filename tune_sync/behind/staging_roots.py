"""Where nodes stage: on their disks, and in shared memory."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from tune_sync.behind.memory_home import Memory
from tune_sync.errors import StoreDeniedError
from tune_sync.fastpath.budget import Budget
from tune_sync.fastpath.folder import SHARED_MEMORY, folder_of
from tune_sync.spec import Options


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
