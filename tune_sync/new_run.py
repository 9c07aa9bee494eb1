"""What a new run starts with: its settings, its place, its filesystem, its home agent."""

from __future__ import annotations

import copy
import itertools
import logging
import os
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray.cloudpickle
import ray.tune

from tune_sync import storage_options
from tune_sync.agents.bucket_probe import check_bucket_of_nodes
from tune_sync.agents.connect import (
    RayConnector,
    node_id,
    note_run,
    start_bucket,
    start_home,
)
from tune_sync.agents.left_on_nodes import Wanted, send_left_behind
from tune_sync.agents.memory_probe import check_memory
from tune_sync.agents.probe import check_shared
from tune_sync.agents.staging_probe import check_staging
from tune_sync.agents.transport_probe import check_transports
from tune_sync.buckets.environment import environment_options
from tune_sync.buckets.url import KNOWN_TO_ARROW
from tune_sync.config import DEFAULT_SYNC_PERIOD_S, LEFT_OUT, REPLICATED, SyncConfig
from tune_sync.destination import Destination
from tune_sync.environment import CHDIR, trials_work_elsewhere
from tune_sync.errors import ConfigError
from tune_sync.fastpath import FastPath
from tune_sync.filesystem import SyncHandler, open_handler
from tune_sync.homes.begun import begun_by, note_begun
from tune_sync.homes.mounts import mount_of
from tune_sync.homes.recorded import newest_of
from tune_sync.homes.shared.site import check_mounted
from tune_sync.mirror.mirror import Mirror
from tune_sync.mirror.outbox import join_remote
from tune_sync.run_filesystem import RunFileSystem
from tune_sync.sending.backlog import Backlog
from tune_sync.sending.gate import Gate
from tune_sync.sending.periodic import PeriodicBacklog
from tune_sync.sending.planned import PlannedBacklog
from tune_sync.sending.turns import Turns
from tune_sync.spec import Options, Spec
from tune_sync.syncers.base import Syncer

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# Who makes a run, if it is not `run_config_kwargs`.
RUN_CONFIG = "RunConfig"
_API = {RUN_CONFIG: "", "tune": "", "train": 'api="train", '}

LEFT_OUT_FILES = (
    f"{CHDIR}=0: trials work outside of their own directories, and what they write at relative "
    "paths stays on their nodes, also with sync_artifacts=True; write it into self.logdir of a "
    f"class trainable, or leave {CHDIR} out"
)

# With sync_on_checkpoint=False state is written no more often than this: as often as Ray saves it
# by itself. Where num_to_keep is set, Ray saves it with every few checkpoints of any trial.
STATE_S = 10.0


def make_filesystem(
    config: SyncConfig, place: Destination, experiment: str, on_existing: str, depth: int = 1,
    made_by: str = RUN_CONFIG, *, keeps_all: bool = False,
) -> RunFileSystem:  # fmt: skip
    """A new run's filesystem, on the driver. `made_by` is for messages: see `ways_out`.

    `keeps_all`: Ray deletes no checkpoints.
    """
    if place.scheme and on_existing == "move_aside":
        raise ConfigError(
            f"{place.scheme}://{place.path}: an earlier experiment cannot be moved aside in a "
            "bucket, which renames nothing; choose another name, or delete it first"
        )
    if config.own_syncer is not None and on_existing == "move_aside":
        raise ConfigError(
            f"{config.upload_dir}/{experiment}: an earlier experiment cannot be moved aside there "
            "by a syncer; choose another name, or delete both it and the local one first"
        )
    options = Options(
        tuple(config.include), tuple(config.exclude), config.timeout_s, config.strict,
        shared=config.is_shared and not place.scheme, checkpoint_depth=depth,
        wait_for=config.wait_for, on_sync_error=config.on_sync_error,
        max_consecutive_failures=config.max_consecutive_failures or 0,
        staging_dir=os.fspath(config.staging_dir or ""),
        staging_limit_bytes=config.staging_limit_bytes or 0,
        sync_on_checkpoint=config.sync_on_checkpoint, sync_period_s=config.period_s,
        max_bandwidth_bytes_per_s=config.max_bandwidth_bytes_per_s or 0,
        max_concurrent_transfers=config.max_concurrent_transfers or 0,
        keep_best=config.keep_best or 0,
        keeps_all=keeps_all and config.sync_on_checkpoint and not config.keep_best,
        replicates=config.wait_for == REPLICATED, **_memory_options(config.fast_path),
    )  # fmt: skip
    spec = Spec(uuid.uuid4().hex, place.path, "", "", None, options, place.scheme)
    storage_options.keep(spec.key, config.bucket_options)
    handler = open_handler(spec, RayConnector())
    handler.is_driver = True
    handler.on_existing = on_existing
    handler.sends_artifacts = config.sync_artifacts
    handler.resume_by = resume_by(config, place, made_by)
    handler.ways_out = ways_out(config, place, made_by)
    if experiment:
        handler.bind(experiment)
    return RunFileSystem(handler)


def _memory_options(fast_path: FastPath | None) -> dict[str, Any]:
    if fast_path is None:
        return {}
    return {
        "memory_dir": fast_path.memory_dir,
        "memory_limit_bytes": fast_path.memory_limit or 0,
        "max_checkpoints_in_memory": fast_path.max_checkpoints_in_memory,
        "transport": fast_path.wanted_transport,
        "transport_required": fast_path.is_transport_required,
        "tls": fast_path.tls.paths if fast_path.tls is not None else (),
        "ports": fast_path.port_range,
        "rdma_device": fast_path.rdma_device,
        "rdma_port": fast_path.rdma_port,
        "rdma_gid_index": fast_path.rdma_gid_index,
    }


def resume_by(config: SyncConfig, place: Destination, made_by: str) -> str:
    """The call that goes on from a run, as text; "{where}" stands for its directory.

    Args:
        config: The run's settings.
        place: Its storage path.
        made_by: `RUN_CONFIG`, or `run_config_kwargs`'s `api`: "tune" or "train".
    """
    if made_by != RUN_CONFIG:
        more = " and tune.run(..., resume=True)" if made_by == "tune" else ""
        return _by_kwargs(made_by, "resume") + more
    options = config.bucket_options or environment_options() if place.scheme else None
    if options or place.scheme not in ("", *KNOWN_TO_ARROW):
        more = ", storage_options" if config.bucket_options else ""
        return f'tune.Tuner.restore(trainable=..., **restore_kwargs("{{where}}"{more}))'
    return 'tune.Tuner.restore("{where}", trainable=...)'


def _by_kwargs(made_by: str, on_existing: str) -> str:
    return f'run_config_kwargs(..., {_API[made_by]}on_existing="{on_existing}")'


def ways_out(config: SyncConfig, place: Destination, made_by: str) -> str:
    """What to do where an earlier experiment has the name. Arguments as of `resume_by`."""
    resume = resume_by(config, place, made_by)
    aside = "move it aside with tune_sync.RunConfig(overwrite=True)"
    if made_by != RUN_CONFIG:
        aside = f"move it aside with {_by_kwargs(made_by, 'move_aside')}"
    if place.scheme:
        aside = "delete it first"
    elif config.own_syncer is not None:
        aside = "delete it first, there and where the syncer sent it"
    return f"resume it with {resume}, choose another name, or {aside}"


@dataclass(frozen=True)
class OwnSync:
    """A syncer of the user's own, and where to: what is needed to mirror a run.

    Attributes:
        syncer: The user's.
        upload_dir: `SyncConfig.upload_dir`.
        period_s: Seconds between two syncs of what trials write beside checkpoints.
    """

    syncer: Syncer
    upload_dir: str
    period_s: float

    @classmethod
    def of(cls, config: SyncConfig) -> OwnSync | None:
        """What the settings say; None without a syncer of the user's own."""
        if config.own_syncer is None:
            return None
        return cls(config.own_syncer, os.fspath(config.upload_dir or ""), config.period_s)

    def begin(self, handler: SyncHandler) -> None:
        """Mirror a run that has started. Raises what `Mirror.begin` raises."""
        run, spec = handler.start(), handler.spec
        remote = join_remote(self.upload_dir, spec.experiment)
        mirror = Mirror(
            Path(handler.experiment_root), remote, self.syncer, self.period_s,
            spec.options.timeout_s, run.lease.check,
        )  # fmt: skip
        mirror.begin(run.home.published_keys())
        run.watch(mirror)
        logger.info("results are sent on to %s", remote)


def begin_home(handler: SyncHandler) -> Any:
    """Make this node the home of a run: start the agent and tell the filesystem.

    A bucket needs no such agent. It, or a shared directory, is looked at from all nodes.

    Returns:
        The agent that others find the run by.

    Raises:
        NotSharedError: A node does not see the shared directory; names both.
        StoreError: Nodes cannot use the bucket; names all, and why.
        ConfigError: So, by a setting of theirs; no node has as much shared memory as was asked for;
            a node cannot stage in `staging_dir`; or a file for TLS is not there.
        TransportMissingError: The transport that is required cannot be used.
    """
    spec = handler.spec
    handler.files.begin_anew()  # an earlier run may have had this one
    warn_of_left_out(handler)
    if spec.scheme:
        address = start_bucket(storage_options.kept(spec.key) or environment_options())
    else:
        if spec.options.shared:
            check_shared(handler.experiment_root)
            # By now what another driver did before is seen here: one of the two stops.
            handler.start().lease.check()
        address = start_home(node_id())
    spec = replace(spec, address=address)
    if spec.scheme:
        check_bucket_of_nodes(spec, handler.connector)
    if spec.options.memory_dir:
        check_memory(spec.options)
    check_staging(spec)
    check_transports(spec.options, node_id())
    handler.spec = spec
    return note_run(handler.spec)


def name_experiment(handler: SyncHandler) -> None:
    """Tell nodes that stage which experiment it is for: see `homes.begun`."""
    run, spec = handler.start(), handler.spec
    if spec.options.stages:
        is_known = bool(run.saved_trials)
        begun = begun_by(run.home) if is_known else note_begun(handler.site(), run.owner)
        handler.spec = replace(spec, begun_by=begun)


def warn_of_left_out(handler: SyncHandler) -> None:
    """Warn where artifacts are asked for, and trials write outside of what is sent."""
    if handler.sends_artifacts and trials_work_elsewhere():
        logger.warning("%s", LEFT_OUT_FILES)


def idle_period(handler: SyncHandler, own_sync: OwnSync | None) -> str:
    """What to say where `sync_period` is set, and nothing goes by it; else "".

    Right only where the run was configured: a handler that was pickled does not know of artifacts.
    """
    options = handler.spec.options
    is_used = handler.sends_artifacts or own_sync is not None or not options.sync_on_checkpoint
    if is_used or options.sync_period_s == DEFAULT_SYNC_PERIOD_S:
        return ""
    return (
        f"sync_period={options.sync_period_s:g} has no effect: every checkpoint travels as soon as "
        'it is reported; add sync_artifacts=True to sync artifacts, or wait_for="staged" and '
        "sync_on_checkpoint=False to have checkpoints travel only so often"
    )


def take_left_behind(handler: SyncHandler) -> None:
    """Publish what nodes still have of a run that is restored, and that nobody sends any more.

    What is not whole after that never will be, and is dropped.
    """
    run, spec = handler.start(), handler.spec
    if spec.options.stages and run.saved_trials:
        there = frozenset(run.home.published_keys())
        wanted = Wanted(run.saved_trials, newest_of(there), there, spec.options.keeps_all)
        send_left_behind(spec, handler.connector, wanted)
    run.recover()


def make_backlog(options: Options) -> Backlog | None:
    """What decides when checkpoints of a run travel that are staged; None: they do at once."""
    if not options.is_planned:
        return None
    gate = Gate(options.max_concurrent_transfers or None)
    if options.sync_on_checkpoint:
        return PlannedBacklog(gate)
    turns = Turns(options.sync_period_s, time.monotonic())
    return PeriodicBacklog(gate, turns, min(STATE_S, options.sync_period_s))


def told_place(spec: Spec) -> str:
    """Where results of a run are, for a message: of a shared directory also what it is on."""
    mount = mount_of(Path(spec.where)) if spec.options.shared else None
    return f"{spec.where} (on {mount})" if mount else spec.where


def claim_name(place: Destination, name: str, *, is_shared: bool = False) -> str:
    """Ray's default name, or one like it: those of two runs in the same second are equal."""
    if place.scheme:
        return f"{name}_{uuid.uuid4().hex[:4]}"
    storage_path = place.path
    try:
        if is_shared:
            check_mounted(Path(storage_path))
        Path(storage_path).mkdir(parents=True, exist_ok=True)
    except (ConfigError, OSError):
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


def copy_sync_config(config: Any) -> SyncConfig:
    """A copy of the user's settings, marked as in use. ConfigError if they are something else."""
    if config is None:
        return SyncConfig().accepted()
    if isinstance(config, SyncConfig):
        _check_pickles(config)
        return copy.copy(config).accepted()
    if isinstance(config, ray.tune.SyncConfig):
        return SyncConfig.from_ray(config).accepted()
    raise ConfigError(f"sync_config={config!r}: a tune_sync.SyncConfig is needed, or one of Ray's")


def _check_pickles(config: SyncConfig) -> None:
    """A restore has the syncer from the pickle that Ray keeps of the run's settings."""
    if config.syncer == LEFT_OUT:
        raise ConfigError(
            "this SyncConfig was pickled, which leaves its syncer out: build it where it is used"
        )
    syncer = config.own_syncer
    if syncer is None:
        return
    try:
        ray.cloudpickle.loads(ray.cloudpickle.dumps(syncer))
    except Exception as error:  # whatever the user's objects raise
        raise ConfigError(
            f"SyncConfig(syncer={type(syncer).__name__}(...)) cannot be pickled ({error}), but a "
            "restore needs it: have its functions open clients and files when they are called"
        ) from error
