"""`fetch`: a copy of a checkpoint where the caller is."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from tune_sync.errors import ConfigError

if TYPE_CHECKING:
    import ray.tune


def fetch(checkpoint: ray.tune.Checkpoint, path: str | os.PathLike[str]) -> Path:
    """Copy a checkpoint into a directory of this machine, whole or not at all.

    Works on the driver, in trials and tasks on any node, and through Ray Client.

    Args:
        checkpoint: From a `Result` or `ResultGrid`.
        path: The directory to make; it must not exist.

    Returns:
        `path`.

    Raises:
        ConfigError: `checkpoint` is not a checkpoint.
        FileExistsError: `path` exists.
        HomeLostError: The node that keeps the checkpoint is gone.
    """
    if not callable(getattr(checkpoint, "to_directory", None)):
        raise ConfigError(
            f"fetch({checkpoint!r}, ...): a checkpoint is needed, such as result.checkpoint, which "
            "is None for a trial that reported none"
        )
    target = Path(path).expanduser().absolute()
    if target.exists():
        raise FileExistsError(f"{target} exists; choose a path that does not")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{uuid.uuid4().hex}")
    try:
        checkpoint.to_directory(partial)
        os.rename(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target
