"""Keyword arguments for what of Ray takes no `tune_sync.RunConfig`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import ray.train

from tune_sync.buckets.schemes import check_scheme
from tune_sync.buckets.url import BucketUrl, is_bucket_url, parse_bucket_url, redacted
from tune_sync.config import SyncConfig
from tune_sync.destination import resolve_destination
from tune_sync.errors import ConfigError
from tune_sync.new_run import OwnSync, copy_sync_config, make_filesystem
from tune_sync.ray_adapter import SyncCallback


def run_config_kwargs(
    sync_config: SyncConfig | None = None, *, storage_path: str | os.PathLike[str] | None = None,
    name: str | None = None, on_existing: str = "error", api: str = "tune",
) -> dict[str, Any]:  # fmt: skip
    """Keyword arguments for those who cannot use `RunConfig`: `tune.run`, Ray Train.

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
    config = copy_sync_config(sync_config)
    place = resolve_destination(config.direct_dir, storage_path)
    if api == "train" and _train_is_v2():
        from tune_sync.train_adapter import train_kwargs

        if config.stages:
            raise ConfigError(
                'SyncConfig(wait_for="staged") and on_sync_error="continue" are for Ray Tune: Ray '
                "Train saves its state by itself, and would name checkpoints that are on their way"
            )
        if config.keep_best is not None:
            raise ConfigError(
                "SyncConfig(keep_best=...) is for Ray Tune: Ray Train keeps the best of its run "
                "with CheckpointConfig(num_to_keep=...)"
            )
        if config.sync_artifacts:
            raise ConfigError(
                "SyncConfig(sync_artifacts=True) is for Ray Tune: Ray Train sends no artifacts; "
                "put what is to be kept into the directory of a checkpoint"
            )
        if config.own_syncer is not None:
            raise ConfigError(
                f"{type(config.own_syncer).__name__}: Ray Train by itself does not send results on "
                "with a syncer of your own; run it inside of a Tuner, or use a bucket as upload_dir"
            )
        return train_kwargs(config, place, name, on_existing)
    filesystem = make_filesystem(config, place, name or "", on_existing, made_by=api)
    kwargs = {
        "storage_path": place.path, "storage_filesystem": filesystem, "sync_config": config,
        "callbacks": [SyncCallback(filesystem, OwnSync.of(config))],
    }  # fmt: skip
    return {"name": name, **kwargs} if name else kwargs


def restore_kwargs(
    url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Keyword arguments for `tune.Tuner.restore` of an experiment in a bucket.

    For credentials and endpoints that the environment does not have; the restored run gives them to
    its workers. Ray then reads the results through tune_sync too: what is read is checked, empty
    directories are there, and `Tuner.restore` raises `StoreDeniedError` or `StoreUnreachableError`
    where it cannot look. With a plain `fsspec+…://` URL that is a `FileNotFoundError`.

    Args:
        url: The experiment's, as for `tune.Tuner.restore`.
        storage_options: As for `SyncConfig`.

    Returns:
        `path` and `storage_filesystem`.

    Raises:
        ConfigError: It is no URL of an experiment.
    """
    place = parse_bucket_url(os.fspath(url)) if is_bucket_url(os.fspath(url)) else None
    if place is None or not place.prefix:
        raise ConfigError(
            f"restore_kwargs({redacted(os.fspath(url))!r}): the URL of an experiment in a "
            "bucket is needed; a directory is restored by tune.Tuner.restore(path, ...) alone"
        )
    try:
        check_scheme(place.scheme)
    except ConfigError as error:
        raise ConfigError(f"restore_kwargs({redacted(os.fspath(url))!r}): {error}") from error
    root, _, experiment = place.path.rpartition("/")
    config = SyncConfig(
        upload_dir=str(BucketUrl(place.scheme, root)), storage_options=storage_options
    )
    where = resolve_destination(config.upload_dir, None)
    filesystem = make_filesystem(config.accepted(), where, experiment, "resume")
    return {"path": place.path, "storage_filesystem": filesystem}


def _train_is_v2() -> bool:
    return "worker_runtime_env" in {f.name for f in fields(ray.train.RunConfig)}
