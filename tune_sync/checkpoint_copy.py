"""`fetch`: a copy of a checkpoint where the caller is."""

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tune_sync import layout
from tune_sync.errors import ConfigError, DamagedError, PathRefusedError
from tune_sync.homes.digests import first_different
from tune_sync.manifest import Manifest, manifest_of

if TYPE_CHECKING:
    import ray.tune


def fetch(checkpoint: ray.tune.Checkpoint, path: str | os.PathLike[str]) -> Path:
    """Copy a checkpoint into a directory of this machine, whole or not at all.

    Works on the driver, in trials and tasks on any node, and through Ray Client. Where the
    checkpoint has a manifest, each file is compared with its digest.

    Args:
        checkpoint: From a `Result` or `ResultGrid`.
        path: The directory to make; it must not exist.

    Returns:
        `path`.

    Raises:
        ConfigError: `checkpoint` is not a checkpoint.
        FileExistsError: `path` exists.
        HomeLostError: The node that keeps the checkpoint is gone.
        DamagedError: A file is not as it was stored, or is missing.
    """
    if not callable(getattr(checkpoint, "to_directory", None)):
        raise ConfigError(
            f"fetch({checkpoint!r}, ...): a checkpoint is needed, such as result.checkpoint, which "
            "is None for a trial that reported none; of a directory make one with "
            "tune.Checkpoint.from_directory"
        )
    target = Path(path).expanduser().absolute()
    if target.exists():
        raise FileExistsError(f"{target} exists; choose a path that does not")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{uuid.uuid4().hex}")
    try:
        checkpoint.to_directory(partial)
        _compare(partial, checkpoint)
        os.rename(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _compare(copy: Path, checkpoint: ray.tune.Checkpoint) -> None:
    manifest = _manifest(checkpoint)
    if manifest and (different := first_different(copy, manifest.files)):
        raise DamagedError(
            f"{checkpoint.path} is not as it was stored: {different}; take another checkpoint, or "
            "put this one back from a backup"
        )


def _manifest(checkpoint: ray.tune.Checkpoint) -> Manifest | None:
    """None of what is not, or not yet, where a run of tune_sync publishes."""
    path = checkpoint.path.rstrip("/")
    if not layout.is_checkpoint_name(path.rpartition("/")[2]):
        return None
    for names_count in (1, 2):  # without a trial, as of Ray Train, then in that of one
        experiment, *names = path.rsplit("/", names_count)
        key = "/".join(names)
        file = f"{experiment}/{layout.manifest_key(key)}"
        # A run in a bucket reads nothing that is not its own.
        with suppress(FileNotFoundError, NotADirectoryError, PathRefusedError):
            with checkpoint.filesystem.open_input_stream(file) as stream:
                data = stream.read()
            return manifest_of(key, data, file)
    return None
