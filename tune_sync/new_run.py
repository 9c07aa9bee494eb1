"""What a new run starts with: its settings, its place, its filesystem, its home agent."""

from __future__ import annotations

import copy
import itertools
import logging
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray.tune

from tune_sync import storage_options
from tune_sync.agents.connect import RayConnector, node_id, start_bucket, start_home
from tune_sync.agents.probe import check_shared
from tune_sync.config import SyncConfig
from tune_sync.destination import Destination
from tune_sync.errors import ConfigError
from tune_sync.filesystem import SyncHandler, open_handler
from tune_sync.run_filesystem import RunFileSystem
from tune_sync.spec import Options, Spec
from tune_sync.syncers.base import Syncer

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


def make_filesystem(
    config: SyncConfig, place: Destination, experiment: str, on_existing: str, depth: int = 1
) -> RunFileSystem:
    """A new run's filesystem, on the driver."""
    if place.scheme and on_existing == "move_aside":
        raise ConfigError(
            f"{place.scheme}://{place.path}: an earlier experiment cannot be moved aside in a "
            "bucket, which renames nothing; choose another name, or delete it first"
        )
    timeout_s = (
        config.syncer.sync_timeout if isinstance(config.syncer, Syncer) else config.sync_timeout
    )
    options = Options(
        tuple(config.include), tuple(config.exclude), timeout_s, config.strict,
        shared=config.is_shared and not place.scheme, checkpoint_depth=depth,
    )  # fmt: skip
    spec = Spec(uuid.uuid4().hex, place.path, "", "", None, options, place.scheme)
    storage_options.keep(spec.key, config.storage_options)
    handler = open_handler(spec, RayConnector())
    handler.is_driver = True
    handler.on_existing = on_existing
    if experiment:
        handler.bind(experiment)
    return RunFileSystem(handler)


def begin_home(handler: SyncHandler) -> None:
    """Make this node the home of a run: start the agent and tell the filesystem.

    A bucket needs no such agent. A shared directory is looked at from all nodes.

    Raises:
        NotSharedError: A node does not see the shared directory; names both.
    """
    spec = handler.spec
    if spec.scheme:
        address = start_bucket(storage_options.kept(spec.key))
    else:
        if spec.options.shared:
            check_shared(handler.experiment_root)
            # By now what another driver did before is seen here: one of the two stops.
            handler.start().lease.check()
        address = start_home(node_id())
    handler.spec = replace(spec, address=address)


def claim_name(place: Destination, name: str) -> str:
    """Ray's default name, or one like it: those of two runs in the same second are equal."""
    if place.scheme:
        return f"{name}_{uuid.uuid4().hex[:4]}"
    storage_path = place.path
    try:
        Path(storage_path).mkdir(parents=True, exist_ok=True)
    except OSError:
        return name  # the start of the run says what is wrong with it
    for candidate in itertools.chain([name], (f"{name}_{n}" for n in itertools.count(2))):
        try:
            Path(storage_path, candidate).mkdir()
        except FileExistsError:
            continue
        except OSError:
            break
        return candidate
    return name


def own_sync_config(config: Any) -> SyncConfig:
    """A copy of the user's settings, marked as in use. ConfigError if they are something else."""
    if config is None:
        return SyncConfig().accepted()
    if isinstance(config, SyncConfig):
        return copy.copy(config).accepted()
    if isinstance(config, ray.tune.SyncConfig):
        return SyncConfig.from_ray(config).accepted()
    raise ConfigError(f"sync_config={config!r}: a tune_sync.SyncConfig is needed, or one of Ray's")


def warn_of_conflicts(path: str, conflicts: tuple[tuple[str, int, int], ...]) -> None:
    """Say which ranks disagreed about a file, and whose bytes were stored."""
    for name, winner, loser in conflicts:
        logger.warning(
            "%s: ranks %d and %d report different bytes for %s; stored those of rank %d",
            path, winner, loser, name, winner,
        )  # fmt: skip
