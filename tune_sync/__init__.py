"""tune_sync: keeps the state of Ray Tune experiments safe, and moves it fast.

Names load when they are first used, so that `import tune_sync` needs neither Ray nor a cloud
library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tune_sync.environment import set_log_level

if TYPE_CHECKING:
    from tune_sync.checkpoint import Checkpoint
    from tune_sync.checkpoint_copy import fetch
    from tune_sync.config import SyncConfig
    from tune_sync.fastpath.settings import FastPath
    from tune_sync.handover import staged_checkpoint
    from tune_sync.homes.recorded import Recovery
    from tune_sync.inner import inner_run_config
    from tune_sync.kwargs import restore_kwargs, run_config_kwargs
    from tune_sync.mirror.experiment_copy import fetch_experiment
    from tune_sync.monitor.look import status
    from tune_sync.ray_adapter import RunConfig
    from tune_sync.resume import restore_or_start
    from tune_sync.syncers.base import Syncer
    from tune_sync.syncers.callback import CallbackSyncer
    from tune_sync.syncers.cloud import CloudSyncer
    from tune_sync.syncers.command import CommandSyncer
    from tune_sync.syncers.object_store import ObjectStoreSyncer
    from tune_sync.syncers.shared_directory import SharedDirectorySyncer
    from tune_sync.tidying import cleanup

__version__ = "0.1.0"

_HOMES = {
    "CallbackSyncer": "syncers.callback",
    "Checkpoint": "checkpoint",
    "CloudSyncer": "syncers.cloud",
    "CommandSyncer": "syncers.command",
    "FastPath": "fastpath.settings",
    "ObjectStoreSyncer": "syncers.object_store",
    "Recovery": "homes.recorded",
    "RunConfig": "ray_adapter",
    "SharedDirectorySyncer": "syncers.shared_directory",
    "SyncConfig": "config",
    "Syncer": "syncers.base",
    "cleanup": "tidying",
    "fetch": "checkpoint_copy",
    "fetch_experiment": "mirror.experiment_copy",
    "inner_run_config": "inner",
    "restore_kwargs": "kwargs",
    "restore_or_start": "resume",
    "run_config_kwargs": "kwargs",
    "staged_checkpoint": "handover",
    "status": "monitor.look",
}

__all__ = [
    "CallbackSyncer",
    "Checkpoint",
    "CloudSyncer",
    "CommandSyncer",
    "FastPath",
    "ObjectStoreSyncer",
    "Recovery",
    "RunConfig",
    "SharedDirectorySyncer",
    "SyncConfig",
    "Syncer",
    "cleanup",
    "errors",
    "fetch",
    "fetch_experiment",
    "inner_run_config",
    "restore_kwargs",
    "restore_or_start",
    "run_config_kwargs",
    "staged_checkpoint",
    "status",
]

set_log_level()  # of every process that uses it: drivers, trials, and the agents of nodes


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("tune_sync.errors")
    if name in _HOMES:
        return getattr(importlib.import_module(f"tune_sync.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'tune_sync' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
