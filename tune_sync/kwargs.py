"""`run_config_kwargs`: for those who cannot use `tune_sync.RunConfig`."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

import ray.train

from tune_sync.config import SyncConfig
from tune_sync.destination import resolve_destination
from tune_sync.errors import ConfigError
from tune_sync.new_run import make_filesystem, own_sync_config
from tune_sync.ray_adapter import SyncCallback


def run_config_kwargs(
    sync_config: SyncConfig | None = None, *, storage_path: str | os.PathLike[str] | None = None,
    name: str | None = None, on_existing: str = "error", api: str = "tune",
) -> dict[str, Any]:  # fmt: skip
    """Keyword arguments for those who cannot use `RunConfig`: `tune.run`, RLlib, Ray Train.

    Args:
        sync_config: As for `RunConfig`.
        storage_path: As for `RunConfig`.
        name: The experiment's name. May be left out for "tune"; then give it to `tune.run`.
        on_existing: If the experiment's directory holds an earlier one: "error", "move_aside",
            or "resume" (needed with `tune.run(..., resume=True)`).
        api: "tune" for `tune.run` and `ray.tune.RunConfig`; "train" for `ray.train.RunConfig`.

    Returns:
        `storage_path`, `storage_filesystem`, `callbacks` and, where they are given or taken,
        `name` and `sync_config`.
        Add your own callbacks to the list; leaving ours out makes trials fail with an error.

    Raises:
        ConfigError: A value that cannot work.
    """
    if on_existing not in ("error", "move_aside", "resume"):
        raise ConfigError(
            f'on_existing={on_existing!r}: "error", "move_aside" or "resume" is needed'
        )
    if api not in ("tune", "train"):
        raise ConfigError(f'api={api!r}: "tune" or "train" is needed')
    config = own_sync_config(sync_config)
    place = resolve_destination(config.upload_dir, storage_path)
    if api == "train" and _train_is_v2():
        from tune_sync.train_adapter import train_kwargs

        if config.stages:
            raise ConfigError(
                'SyncConfig(wait_for="staged") and on_sync_error="continue" are for Ray Tune: Ray '
                "Train saves its state by itself, and would name checkpoints that are on their way"
            )

        return train_kwargs(config, place, name, on_existing)
    filesystem = make_filesystem(config, place, name or "", on_existing)
    kwargs = {
        "storage_path": place.path, "storage_filesystem": filesystem, "sync_config": config,
        "callbacks": [SyncCallback(filesystem)],
    }  # fmt: skip
    return {"name": name, **kwargs} if name else kwargs


def _train_is_v2() -> bool:
    return "worker_runtime_env" in {f.name for f in fields(ray.train.RunConfig)}
