"""`inner_run_config`: a Ray Train run inside a Tune trial inherits the trial's syncing."""

from __future__ import annotations

import posixpath
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray
import ray.train
import ray.tune

from tune_sync.errors import ConfigError
from tune_sync.filesystem import handlers, open_handler
from tune_sync.run_filesystem import RunFileSystem

if TYPE_CHECKING:
    from tune_sync.filesystem import SyncHandler


def inner_run_config(name: str | None = None, **fields: Any) -> ray.train.RunConfig:
    """The `run_config` for a trainer that is built inside a trial.

    Its results go into a directory of the trial's directory, on the home node.

    Args:
        name: Name of that directory; one is made up by default.
        fields: Further fields of `ray.train.RunConfig`.

    Raises:
        ConfigError: Not called inside a trial of a run with `tune_sync.RunConfig`.
    """
    try:
        from tune_sync.train_adapter import TrainCallback
    except ImportError as error:
        raise ConfigError(
            "inner_run_config() needs the second generation of Ray Train, and Ray "
            f"{ray.__version__} runs the first; set RAY_TRAIN_V2_ENABLED=1 on all nodes, or "
            "install a newer Ray"
        ) from error
    trial_dir = (ray.tune.get_context().get_trial_dir() or "").rstrip("/")
    outer, trial = _trial_handler(trial_dir), posixpath.basename(trial_dir)
    name = name or f"train-{time.strftime('%Y-%m-%d_%H-%M-%S')}-{uuid.uuid4().hex[:6]}"
    root = f"{outer.experiment_root}/{trial}"
    options = replace(outer.spec.options, checkpoint_depth=0, include=(), exclude=())
    spec = replace(
        outer.spec, key=uuid.uuid4().hex, root=root, experiment=name, owner="", options=options
    )
    filesystem = RunFileSystem(open_handler(spec, outer.connector))
    callbacks = [TrainCallback(filesystem), *fields.pop("callbacks", ())]
    return ray.train.RunConfig(
        name=name, storage_path=root, storage_filesystem=filesystem, callbacks=callbacks, **fields
    )


def _trial_handler(trial_dir: str) -> SyncHandler:
    """The handler of the trial's own run: its config may hold checkpoints of other runs."""
    for handler in handlers():
        in_trial = not handler.is_driver and handler.connector.is_worker()
        is_own = handler.experiment_root == posixpath.dirname(trial_dir)
        if in_trial and is_own and handler.spec.address is not None:
            return handler
    raise ConfigError(
        "inner_run_config() works inside a trial of a Tuner with tune_sync.RunConfig; outside of "
        'one use ray.train.RunConfig(**run_config_kwargs(api="train"))'
    )
