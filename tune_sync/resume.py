"""`restore_or_start`: one script that starts an experiment, and resumes it when it is run again."""

from __future__ import annotations

import logging
from typing import Any

import ray
import ray.tune

from tune_sync.agents.refill import refill as bring_back
from tune_sync.buckets.url import BucketUrl
from tune_sync.errors import ConfigError, DamagedError
from tune_sync.filesystem import SyncHandler
from tune_sync.homes.saved_state import STATES
from tune_sync.homes.saved_tuner import put_back
from tune_sync.homes.sites import make_way
from tune_sync.kwargs import restore_kwargs
from tune_sync.layout import is_state
from tune_sync.own_runs import OWN
from tune_sync.ray_adapter import RunConfig
from tune_sync.spec import Spec

# What Ray Train keeps of an experiment, in the place of a state.
TRAINER = "trainer.pkl"

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


def restore_or_start(
    trainable: Any, *, run_config: RunConfig, param_space: dict[str, Any] | None = None,
    tune_config: ray.tune.TuneConfig | None = None, resume_errored: bool = False,
    restart_errored: bool = False, refill: bool = False,
) -> ray.tune.Tuner:  # fmt: skip
    """A Tuner that resumes the experiment of this name, or starts it if there is none.

    For scripts that are run again after whatever killed them. If the experiment has ended, `fit()`
    returns its results at once; if it is running, `fit()` raises `LeaseHeldError`.
    `ray.tune.Tuner.can_restore` does not say whether there is nothing,
    or nothing that can be seen; this raises then. Checkpoints of a run that died before it saved
    any state cannot be resumed: they are moved aside, with a warning, and the experiment starts.

    Args:
        trainable: As for `ray.tune.Tuner`.
        run_config: It needs a `name`, and says where to look. A run that is resumed goes on with
            the settings it was started with; of these only `storage_options` are used then.
        param_space: As for `ray.tune.Tuner`; also given to `Tuner.restore`.
        tune_config: As for `ray.tune.Tuner`; a run that is resumed keeps its own.
        resume_errored: As for `Tuner.restore`.
        restart_errored: As for `Tuner.restore`.
        refill: If the driver's node has lost its disk, bring the experiment back from the copies
            that other nodes of the cluster have. They have any only where checkpoints are staged,
            as with `wait_for="staged"`.

    Raises:
        ConfigError: No name, `overwrite=True`, or another kind of `RunConfig`; or `refill` where
            nodes keep no copies.
        DamagedError: An experiment is there, and neither its `tuner.pkl`, which a restore needs,
            nor the copy of that is whole, or there at all, as after `tune.run`; or checkpoints
            without a state are, in a bucket or with a syncer of your own.
        StoreDeniedError, StoreUnreachableError, OSError: The place cannot be looked at: whether
            something is there is not known, and nothing is started.
    """
    handler = _handler_of(run_config)
    site = handler.site()
    if refill:
        _check_refill(handler.spec)
    names = site.look()
    is_there = bool(names) and site.holds_experiment()
    if is_there and not any(is_state(name) or name == TRAINER for name in names):
        _move_aside(run_config, handler)
    elif is_there or (refill and _refilled(handler.spec)):
        if is_there:
            put_back(site)
        logger.info("%s: resuming what is there", site.where)
        return ray.tune.Tuner.restore(
            **_place_of(handler), trainable=trainable, param_space=param_space,
            resume_errored=resume_errored, restart_errored=restart_errored,
        )  # fmt: skip
    else:
        also = ", nor has a node a copy" if refill else ""
        logger.info("%s: nothing to resume%s, starting afresh", site.where, also)
    return ray.tune.Tuner(
        trainable, param_space=param_space, tune_config=tune_config, run_config=run_config
    )


def _move_aside(run_config: RunConfig, handler: SyncHandler) -> None:
    """Make way for a fresh start, where checkpoints are that nothing names.

    Its driver was killed after it had published the first one, and before it saved a state; Ray
    cannot resume that. Or somebody removed the state: so nothing of it may be lost.
    """
    site = handler.site()
    where, syncer = site.where, run_config.sync_config.own_syncer
    why = f"{where} holds checkpoints, but no {STATES} that names them, and cannot be resumed"
    if handler.spec.scheme or syncer is not None:
        there = ", there and where the syncer sent it" if syncer is not None else ""
        raise DamagedError(
            f"{why}: its run died before it saved one, or that was removed; put it back, or choose "
            f"another name, or delete it first{there}, to start afresh"
        )
    logger.warning("%s: it is moved aside, and what is now started begins afresh", why)
    OWN.end_left(where)
    # Not by `overwrite=True`: the Tuner would move aside also what a later `fit()` of it finds.
    make_way(site, "move_aside", "", OWN.may_replace)


def _check_refill(spec: Spec) -> None:
    if spec.scheme or spec.options.shared or not spec.options.stages:
        raise ConfigError(
            "restore_or_start(refill=True): nodes keep copies only where results are kept on the "
            'driver\'s node, without upload_dir, and SyncConfig(wait_for="staged"); leave it out'
        )


def _refilled(spec: Spec) -> bool:
    if not ray.is_initialized():
        ray.init()  # as Ray Tune does
    return bring_back(spec)


def _handler_of(run_config: Any) -> SyncHandler:
    if not isinstance(run_config, RunConfig):
        raise ConfigError(f"restore_or_start(run_config={type(run_config).__name__}(...)): a "
                          "tune_sync.RunConfig is needed")  # fmt: skip
    if not run_config.name:
        raise ConfigError(
            "restore_or_start(run_config=RunConfig(...)): a name is needed; without one every run "
            "gets another, and there would never be anything to resume"
        )
    if run_config.overwrite:
        raise ConfigError(
            "restore_or_start(run_config=RunConfig(overwrite=True)): that moves an experiment "
            "aside, this resumes it; leave one of them out"
        )
    handler: SyncHandler = run_config.storage_filesystem.handler
    return handler


def _place_of(handler: SyncHandler) -> dict[str, Any]:
    spec = handler.spec
    if not spec.scheme:
        return {"path": handler.experiment_root}
    url = BucketUrl(spec.scheme, handler.experiment_root)
    return restore_kwargs(str(url), handler.connector.storage_options(spec) or None)
