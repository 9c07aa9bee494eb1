"""`inner_run_config`: a Ray Train run inside a Tune trial inherits the trial's syncing."""

from __future__ import annotations

import posixpath
import uuid
from dataclasses import replace
from typing import Any

import ray
import ray.train
import ray.tune

from tune_sync.errors import ConfigError
from tune_sync.filesystem import SyncHandler, open_handler
from tune_sync.homes.inner_runs import note_inner
from tune_sync.run_filesystem import RunFileSystem
from tune_sync.spec import Spec


def inner_run_config(name: str | None = None, **fields: Any) -> ray.train.RunConfig:
    """The `run_config` for a trainer that is built inside a trial.

    Its results go into a directory of the trial's directory, on the home node. What a crash leaves
    of it goes when the experiment is restored, or cleaned up.

    Args:
        name: Name of that directory; one is made up by default.
        fields: Further fields of `ray.train.RunConfig`.

    Raises:
        ConfigError: Not called inside a trial of a run with `tune_sync.RunConfig`; or the name is
            not that of one directory, or is that of a checkpoint.
    """
    try:
        from tune_sync.train_adapter import TrainCallback, made_up_name
    except ImportError as error:
        raise ConfigError(
            "inner_run_config() needs the second generation of Ray Train, and Ray "
            f"{ray.__version__} runs the first; set RAY_TRAIN_V2_ENABLED=1 on all nodes, or "
            "install a newer Ray"
        ) from error
    context = ray.tune.get_context()
    outer = _trial_handler(context.get_storage())
    trial = posixpath.basename(context.get_trial_dir().rstrip("/"))
    name = name or made_up_name()
    root = f"{outer.experiment_root}/{trial}"
    home, directory, _ = outer.locate(f"{root}/{name}")
    note_inner(home, directory)
    spec = inner_spec(outer.spec, trial, name)
    filesystem = RunFileSystem(open_handler(spec, outer.connector))
    callbacks = [TrainCallback(filesystem), *fields.pop("callbacks", ())]
    return ray.train.RunConfig(
        name=name, storage_path=root, storage_filesystem=filesystem, callbacks=callbacks, **fields
    )


def inner_spec(outer: Spec, trial: str, name: str) -> Spec:
    """A trainer's, of a directory in that of a trial; it may write as long as the trial's run may.

    Args:
        outer: The run's.
        trial: Name of the trial's directory.
        name: Of that in it.
    """
    options = replace(outer.options, checkpoint_depth=0, include=(), exclude=())
    return replace(
        outer, key=uuid.uuid4().hex, root=f"{outer.root}/{outer.experiment}/{trial}",
        experiment=name, owner="", outer_owner=outer.owner, options=options,
    )  # fmt: skip


def _trial_handler(storage: Any) -> SyncHandler:
    """The handler of the trial's own run: checkpoints in its config may bring those of others."""
    handler = getattr(getattr(storage, "storage_filesystem", None), "handler", None)
    if (
        isinstance(handler, SyncHandler)
        and not handler.is_driver
        and handler.connector.is_worker()
        and handler.spec.address is not None
    ):
        return handler
    raise ConfigError(
        "inner_run_config() works inside a trial of a Tuner with tune_sync.RunConfig; outside of "
        'one use ray.train.RunConfig(**run_config_kwargs(api="train"))'
    )
