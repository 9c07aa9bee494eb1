"""`staged_checkpoint`: a directory whose files are reported without a copy of them."""

from __future__ import annotations

import math
import numbers
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import ray.train
import ray.tune

from tune_sync.behind.node_disk import NodeDisk, remove_made
from tune_sync.behind.staging_roots import staging_root
from tune_sync.checkpoint import Checkpoint
from tune_sync.errors import ConfigError
from tune_sync.filesystem import SyncHandler
from tune_sync.source import GivenHandler


@dataclass(frozen=True, slots=True)
class StagedDirectory(os.PathLike[str]):
    """What `staged_checkpoint` gives. It can be used as a path.

    Attributes:
        path: The directory, to be filled.
        checkpoint: What to report once it is filled. Reporting takes its files away.
    """

    path: Path
    checkpoint: Checkpoint = field(repr=False)

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def filesystem(self) -> NoReturn:
        """What Ray asks a checkpoint for first, and this is none.

        Raises:
            ConfigError: Always; says what to report.
        """
        raise ConfigError(
            "this is the directory of staged_checkpoint(), not a checkpoint: report "
            "checkpoint=staged.checkpoint, where staged is what the with statement gave"
        )


@contextmanager
def staged_checkpoint(size_bytes: int | None = None) -> Iterator[StagedDirectory]:
    """A directory to fill and to report, for use in a trainable in place of a temporary one.

    ```python
    with tune_sync.staged_checkpoint() as staged:
        torch.save(model.state_dict(), staged.path / "model.pt")
        tune.report({"loss": loss}, checkpoint=staged.checkpoint)
    ```

    Where checkpoints are staged it lies where this node stages them, and `tune.report` moves its
    files instead of copying them: it takes as long for 1 GiB as for 1 MB. The checkpoint survives
    the trial's process on return. This node's agent then reads it and makes it durable on the
    node's disk, and sends it. Otherwise, and outside of a run of tune_sync, all is as with
    `Checkpoint.from_directory` and a temporary directory.

    The directory is gone when the block ends, reported or not; after a kill it is removed later. A
    report empties it, also one that raises. A file that some process still has open for writing is
    copied as it is at that moment; see docs/howto/write-behind.md.

    With `fast_path` it lies in shared memory, if there is room for it: for as much as this process
    handed over last, or for `size_bytes`. So the first of a process is on the disk without that.

    Args:
        size_bytes: About how large the checkpoint will be; None: it is not known.

    Raises:
        ConfigError: That is no size.
        SyncTimeoutError: There was no room in staging for `sync_timeout`.
        StoreFullError: The disk is full.
        StoreDeniedError: This user may not write there.
    """
    handler, size = _handler_here(), _checked(size_bytes)
    given = handler.make_directory(size) if handler is not None else None
    path = given or _plain_directory()
    try:
        yield StagedDirectory(path, Checkpoint(str(path), filesystem=GivenHandler(path).filesystem))
    finally:
        remove_made(path)


def _checked(size_bytes: Any) -> int:
    is_number = isinstance(size_bytes, numbers.Real) and not isinstance(size_bytes, bool)
    if size_bytes is not None and not (is_number and 0 <= size_bytes < math.inf):
        raise ConfigError(
            f"staged_checkpoint(size_bytes={size_bytes!r}): a size in bytes is needed"
        )
    return int(size_bytes or 0)


def _plain_directory() -> Path:
    disk = NodeDisk(staging_root(""))
    disk.sweep_making()
    return disk.make_directory()


def _handler_here() -> SyncHandler | None:
    """What the trial writes through that this process is, or is a worker of; None elsewhere."""
    for get_context in (ray.tune.get_context, ray.train.get_context):
        handler = getattr(_storage_of(get_context), "handler", None)
        if isinstance(handler, SyncHandler) and not handler.is_driver:
            return handler
    return None


def _storage_of(get_context: Any) -> Any:
    with warnings.catch_warnings():  # outside of a trial some versions of Ray warn
        warnings.simplefilter("ignore")
        try:
            return get_context().get_storage().storage_filesystem
        except Exception:  # and each raises something of its own
            return None
