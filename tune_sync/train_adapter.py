"""Ray Train's own `RunConfig` (its second generation), which takes no Tune callback."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from typing import Any

import pyarrow.fs as pafs
import ray
from ray.train import UserCallback

from tune_sync.config import SyncConfig
from tune_sync.destination import Destination
from tune_sync.errors import NotStoredError
from tune_sync.filesystem import SyncHandler
from tune_sync.layout import TRAIN_RECORD
from tune_sync.manifest import warn_of_conflicts
from tune_sync.new_run import begin_home, make_filesystem


class TrainCallback(UserCallback):  # type: ignore[misc]
    """Publishes a checkpoint when all workers have reported it. Runs in Train's controller."""

    def __init__(self, filesystem: pafs.PyFileSystem) -> None:
        self._filesystem = filesystem

    def after_report(self, run_context: Any, metrics: list[Any], checkpoint: Any) -> None:
        """See `ray.train.UserCallback.after_report`.

        Raises:
            NotStoredError: Ray's record, which it just wrote, is not stored, nor could it be now;
                Ray does not know.
            StoreError, OSError, …: The checkpoint cannot be published.
        """
        handler: SyncHandler = self._filesystem.handler
        if checkpoint is not None and checkpoint.filesystem == self._filesystem:
            warn_of_conflicts(checkpoint.path, handler.publish(checkpoint.path))
        self._store_again(handler)
        why = handler.files.unstored.get(TRAIN_RECORD)
        if why is not None:
            raise NotStoredError(
                f"{TRAIN_RECORD}, which names what was reported, is not stored: {why}"
            )

    def _store_again(self, handler: SyncHandler) -> None:
        """Write the record once more where it is not stored: nobody else does if this fails."""
        body = handler.files.bodies.get(TRAIN_RECORD)
        if body is not None and TRAIN_RECORD in handler.files.unstored:
            path = f"{handler.experiment_root}/{TRAIN_RECORD}"
            with suppress(Exception), self._filesystem.open_output_stream(path) as stream:
                stream.write(body)  # why it is not stored is noted


def made_up_name() -> str:
    """For a run that was given none: no other one has it."""
    return f"train-{time.strftime('%Y-%m-%d_%H-%M-%S')}-{uuid.uuid4().hex[:6]}"


def train_kwargs(
    config: SyncConfig, place: Destination, name: str | None, on_existing: str
) -> dict[str, Any]:
    """Keyword arguments for `ray.train.RunConfig`. Starts the home agent, and Ray if needed.

    This process holds the lease on the directory until it ends.
    """
    name = name or made_up_name()
    if not ray.is_initialized():
        ray.init()
    filesystem = make_filesystem(config, place, name, on_existing, depth=0, made_by="train")
    filesystem.handler.start()
    begin_home(filesystem.handler)
    return {
        "name": name, "storage_path": place.path, "storage_filesystem": filesystem,
        "callbacks": [TrainCallback(filesystem)],
    }  # fmt: skip
