"""What users set. Checked when built; every default is a named constant."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ray.tune import SyncConfig as RaySyncConfig

from tune_sync.buckets.url import is_bucket_url, redacted
from tune_sync.destination import check_upload_dir, refuse_bare_path
from tune_sync.errors import ConfigError
from tune_sync.fastpath import FastPath
from tune_sync.field_checks import (
    check_choice,
    check_count,
    check_flag,
    check_options,
    check_patterns,
    check_seconds,
    names_its_fields,
    own_syncers,
)
from tune_sync.filters import leaves_nothing
from tune_sync.syncers.base import Syncer
from tune_sync.syncers.cloud import CloudSyncer
from tune_sync.syncers.object_store import ObjectStoreSyncer
from tune_sync.syncers.shared_directory import SharedDirectorySyncer

# Ray's own: long enough that small files of many trials don't flood the home node.
DEFAULT_SYNC_PERIOD_S = 300
# Ray's own: half an hour without an answer is a hang, not a slow disk.
DEFAULT_SYNC_TIMEOUT_S = 1800
# Three decades. The system's waits refuse ten times as much, at the end of a run.
MOST_TIMEOUT_S = 1e9

_FLAGS = ("sync_artifacts", "sync_artifacts_on_checkpoint", "strict", "sync_on_checkpoint")
# What bounds the traffic of checkpoints that are staged.
_LIMITS = ("max_bandwidth_bytes_per_s", "max_concurrent_transfers")

AUTO = "auto"
STORED, STAGED, REPLICATED = "stored", "staged", "replicated"
RAISE, CONTINUE = "raise", "continue"

# What a syncer of the user's own becomes in a pickle: Ray sends settings to all trials, and the
# syncer's code may be on the driver's node only.
LEFT_OUT = "left out of the pickle"
# These say how workers write; their methods are not called.
_BUILT_IN = (CloudSyncer, ObjectStoreSyncer, SharedDirectorySyncer)


@names_its_fields
@dataclass
class SyncConfig(RaySyncConfig):  # type: ignore[misc]  # Ray has no types
    """How results of trials are stored, and where. Put it into `tune_sync.RunConfig`.

    Args:
        sync_period: Seconds between two syncs of a trial's artifacts; with
            `sync_on_checkpoint=False`, of its checkpoints too.
        sync_timeout: Seconds to wait for an answer of the home node, or of a shared directory,
            before a sync fails. Requests to buckets end earlier, after `request_timeout_s` each.
        sync_artifacts: Whether files that a trial writes into its working directory are synced.
        sync_artifacts_on_checkpoint: Whether they are synced with every checkpoint too.
        syncer: "auto" picks by `upload_dir`. Without one, "auto" and `ObjectStoreSyncer()`: nodes
            share nothing; results go to the driver's node through the Ray object store. None: the
            storage path is the same directory on all nodes, nothing has to be moved. With one,
            `CloudSyncer()` and `SharedDirectorySyncer()` say what "auto" would pick. Any other
            `Syncer`, such as `CommandSyncer(...)`: results go to the driver's node as without
            `upload_dir`, and from there the syncer sends them to `upload_dir`.
        include: Glob patterns on paths relative to the trial directory; if given, only artifacts
            that match one are stored. A pattern that matches a directory takes all in it. Needs
            `sync_artifacts`.
        exclude: The same; files that match one are not stored, also those of checkpoints.
        strict: What happens when ranks of one trial report files of equal name and different
            bytes: False stores the lowest rank's (in a bucket, up to 16 MiB) and warns, True
            raises.
        upload_dir: Where results go: the URL of a bucket (`s3://bucket/path`, `gs://`, `abfs://`,
            `sftp://`, any of fsspec), to which every worker writes itself; or a directory that all
            nodes see (a path that begins with `/`, `.` or `~`, `file://`); with a syncer of yours
            whatever that understands. None: the driver's node, below `RunConfig.storage_path`.
        storage_options: Credentials and settings of the bucket, where the usual environment does
            not have them: for `s3://` key, secret, token, endpoint_url, region, anon, sign_payload,
            engine, request_timeout_s, connect_timeout_s; for all, tries_count of a request (10).
            Stored nowhere: a restore needs `restore_kwargs`, or `TUNE_SYNC_STORAGE_OPTIONS`.
        wait_for: What `tune.report` waits for: "stored", until the checkpoint is at its
            destination; "staged", until it is safe from the trial on its own node, and is sent
            behind the training; "replicated", with `fast_path`, until another node has it too.
        on_sync_error: What happens if the destination does not answer, after all tries: "raise"
            fails the trial; "continue" lets it go on, and sends what is staged on its node once
            the destination answers again.
        max_consecutive_failures: With `on_sync_error="continue"`: so many reports in a row of a
            trial that are not stored are one too many: the last one fails, with the cause. None:
            no limit, but for the room to stage them.
        staging_dir: With staging, which `wait_for` or `on_sync_error` asks for: the directory of
            every node where checkpoints are staged. None: one below its temporary directory.
        staging_limit_bytes: With staging: how much a run may stage on a node before reports wait.
            None: a quarter of what is free there.
        sync_on_checkpoint: True: every checkpoint travels to the destination. False, for large
            clusters, with `wait_for="staged"` or "replicated": only the newest of each trial, once
            a `sync_period`, and its last. The others are never stored, and Ray forgets them.
        max_bandwidth_bytes_per_s: With staging: how much each node sends at most. None: no limit.
        max_concurrent_transfers: With `wait_for="staged"` or "replicated": how many checkpoints of
            all nodes travel to the destination at a time. None: no limit, but for two of each node.
        fast_path: With staging: `FastPath(...)` stages in shared memory of the node first. What is
            only there is lost with its node, also if that starts again.
        keep_best: How many checkpoints of the whole experiment are kept: the best, by
            `checkpoint_score_attribute` and `checkpoint_score_order` of Ray's `CheckpointConfig`.
            What a trial that has not ended would go on from stays besides. None: what
            `num_to_keep` keeps of each trial.

    Raises:
        ConfigError: A value that cannot work, naming the field.
    """

    sync_period: float = DEFAULT_SYNC_PERIOD_S
    sync_timeout: float = DEFAULT_SYNC_TIMEOUT_S
    sync_artifacts: bool = False
    sync_artifacts_on_checkpoint: bool = True
    syncer: str | Syncer | None = AUTO
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    strict: bool = False
    upload_dir: str | os.PathLike[str] | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    wait_for: str = STORED
    on_sync_error: str = RAISE
    max_consecutive_failures: int | None = None
    staging_dir: str | os.PathLike[str] | None = None
    staging_limit_bytes: int | None = None
    sync_on_checkpoint: bool = True
    max_bandwidth_bytes_per_s: int | None = None
    max_concurrent_transfers: int | None = None
    fast_path: FastPath | None = None
    keep_best: int | None = None
    _accepted: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, most in (("sync_period", math.inf), ("sync_timeout", MOST_TIMEOUT_S)):
            check_seconds(name, getattr(self, name), most)
        for name in _FLAGS:
            check_flag(name, getattr(self, name))
        for name in ("include", "exclude"):
            setattr(self, name, check_patterns(name, getattr(self, name)))
        _check_left_out(self)
        check_choice("wait_for", self.wait_for, (STORED, REPLICATED, STAGED))
        check_choice("on_sync_error", self.on_sync_error, (RAISE, CONTINUE))
        _check_keep_best(self)
        _check_staging(self)
        _check_failures(self)
        if self.own_syncer is not None:
            _check_own_stages(self)
            _check_own(self.own_syncer, self)
            return
        _check_fast_path(self)
        is_bucket = check_upload_dir(self.upload_dir)
        check_options(self.storage_options, is_bucket)
        _check_syncer(self.syncer, self.upload_dir, is_bucket)
        refuse_bare_path(self.upload_dir)
        _check_sending(self)

    @property
    def timeout_s(self) -> float:
        """Seconds to wait for an answer: ours, or if that is the default a built-in syncer's."""
        if isinstance(self.syncer, _BUILT_IN) and self.sync_timeout == DEFAULT_SYNC_TIMEOUT_S:
            return self.syncer.sync_timeout
        return self.sync_timeout

    @property
    def period_s(self) -> float:
        """Seconds between two syncs: ours, or if that is the default the syncer's."""
        if isinstance(self.syncer, Syncer) and self.sync_period == DEFAULT_SYNC_PERIOD_S:
            return float(getattr(self.syncer, "sync_period", self.sync_period))
        return self.sync_period

    @property
    def bucket_options(self) -> Mapping[str, Any] | None:
        """`storage_options`, or if there are none those of a `CloudSyncer`."""
        if self.storage_options is None and isinstance(self.syncer, CloudSyncer):
            return self.syncer.storage_options or None
        return self.storage_options

    def __getstate__(self) -> dict[str, Any]:
        syncer = LEFT_OUT if self.own_syncer is not None else self.syncer
        return {**self.__dict__, "storage_options": None, "syncer": syncer}  # secrets never

    def __deepcopy__(self, memo: dict[int, Any]) -> SyncConfig:
        return self.__copy__()

    def __copy__(self) -> SyncConfig:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    @property
    def stages(self) -> bool:
        """Whether checkpoints are staged on the node that writes them."""
        return self.wait_for != STORED or self.on_sync_error == CONTINUE

    @property
    def own_syncer(self) -> Syncer | None:
        """The user's syncer, which sends results on from the driver's node; None without one."""
        is_own = isinstance(self.syncer, Syncer) and type(self.syncer) not in _BUILT_IN
        return self.syncer if isinstance(self.syncer, Syncer) and is_own else None

    @property
    def direct_dir(self) -> str | os.PathLike[str] | None:
        """Where workers write themselves; None if that is the driver's node."""
        return None if self.own_syncer is not None else self.upload_dir

    @property
    def is_shared(self) -> bool:
        """Whether results go to a directory that all nodes see."""
        place = self.direct_dir
        at_directory = place is not None and not is_bucket_url(os.fspath(place))
        return self.syncer is None or at_directory

    def __bool__(self) -> bool:
        # Ray's own RunConfig and tune.run test `if not sync_config`, ours does not. That makes
        # this the earliest moment to see that it was put where nobody would act on it.
        asking = str(sys._getframe(1).f_globals.get("__name__"))
        if not self._accepted and asking.startswith("ray."):
            raise ConfigError(
                "a tune_sync.SyncConfig has no effect in ray.tune.RunConfig or tune.run by itself; "
                "use tune_sync.RunConfig(sync_config=...), or "
                "tune.run(..., **tune_sync.run_config_kwargs(sync_config))"
            )
        return True

    @classmethod
    def from_ray(cls, config: RaySyncConfig) -> SyncConfig:
        """Ray's four fields, with our defaults for the rest."""
        return cls(**{f.name: getattr(config, f.name) for f in fields(RaySyncConfig)})

    def accepted(self) -> SyncConfig:
        """Mark it as being in use by tune_sync; returns itself."""
        self._accepted = True
        return self


def _check_keep_best(config: SyncConfig) -> None:
    check_count("keep_best", config.keep_best, "a number")
    if config.keep_best is not None and not config.sync_on_checkpoint:
        raise ConfigError(
            "SyncConfig(keep_best=..., sync_on_checkpoint=False): what travels is not chosen by "
            "its score, and the best may never do; leave one of them out"
        )


def _check_staging(config: SyncConfig) -> None:
    limit, place = config.staging_limit_bytes, config.staging_dir
    check_count("staging_limit_bytes", limit, "a whole number of bytes")
    is_path = isinstance(place, (str, os.PathLike)) and os.path.isabs(place)
    if place is not None and not is_path:
        raise ConfigError(f"SyncConfig(staging_dir={place!r}): an absolute path is needed")
    if (limit is not None or place is not None) and not config.stages:
        named = "staging_dir" if limit is None else "staging_limit_bytes"
        raise ConfigError(
            f'SyncConfig({named}=...): nothing is staged without wait_for="staged", '
            'wait_for="replicated" with fast_path=FastPath(), or on_sync_error="continue"; add one'
        )


def _check_fast_path(config: SyncConfig) -> None:
    path = config.fast_path
    if path is None and config.wait_for == REPLICATED:
        raise ConfigError(
            'SyncConfig(wait_for="replicated"): the fast path brings checkpoints to another node; '
            'add fast_path=FastPath(), or give wait_for="staged" or "stored"'
        )
    if path is not None and not isinstance(path, FastPath):
        raise ConfigError(f"SyncConfig(fast_path={path!r}): a FastPath is needed")
    if path is not None and not config.stages:
        raise ConfigError(
            f"SyncConfig(fast_path=..., wait_for={config.wait_for!r}): a report that waits for the "
            'destination is not made faster by memory; add wait_for="replicated" or "staged", or '
            'on_sync_error="continue" to stage what the destination does not take'
        )
    given = path.given_for_replicas if path is not None else []
    if given and config.wait_for != REPLICATED:
        raise ConfigError(
            f"FastPath({', '.join(f'{name}=...' for name in given)}) with "
            f"wait_for={config.wait_for!r}: nothing goes to another node's memory; add "
            f'wait_for="replicated", or leave {" and ".join(given)} out'
        )


def _check_failures(config: SyncConfig) -> None:
    most = config.max_consecutive_failures
    check_count("max_consecutive_failures", most, "a whole number")
    waits = config.on_sync_error == CONTINUE and config.wait_for == STORED
    if most is not None and not waits:
        raise ConfigError(
            f"SyncConfig(max_consecutive_failures={most}): it counts reports that waited in vain, "
            'and went on all the same: give on_sync_error="continue" (and not wait_for="staged") '
            "with it, or leave it out"
        )


def _check_sending(config: SyncConfig) -> None:
    bandwidth = config.max_bandwidth_bytes_per_s
    check_count("max_bandwidth_bytes_per_s", bandwidth, "a whole number of bytes per second")
    check_count("max_concurrent_transfers", config.max_concurrent_transfers, "a whole number")
    if not config.sync_on_checkpoint and config.wait_for == STORED:
        raise ConfigError(
            f"SyncConfig(sync_on_checkpoint=False, wait_for={config.wait_for!r}): a report cannot "
            "wait for a checkpoint that travels once a sync_period, or never; add "
            'wait_for="staged", or leave out sync_on_checkpoint'
        )
    given = [n for n in _LIMITS if getattr(config, n) is not None]
    if given and not config.stages:
        raise ConfigError(
            f"SyncConfig({', '.join(given)}): trials write to the destination themselves, without "
            'limits; add wait_for="staged", so that the nodes send what is staged'
        )
    if config.max_concurrent_transfers is not None and config.wait_for == STORED:
        raise ConfigError(
            f"SyncConfig(max_concurrent_transfers, wait_for={config.wait_for!r}): whose turn it is "
            "the driver says once a report has returned, so that none can wait for its turn; add "
            'wait_for="staged", or leave out max_concurrent_transfers'
        )


def _check_own_stages(config: SyncConfig) -> None:
    """A syncer of the user's own sends from the driver's node, not from where trials run."""
    given = [n for n in _LIMITS if getattr(config, n) is not None]
    given += [] if config.sync_on_checkpoint else ["sync_on_checkpoint=False"]
    given += [f'wait_for="{config.wait_for}"'] if config.wait_for != STORED else []
    given += ['on_sync_error="continue"'] if config.on_sync_error == CONTINUE else []
    given += ["fast_path"] if config.fast_path is not None else []
    if given:
        raise ConfigError(
            f"SyncConfig(syncer={_named(config.syncer)}, {', '.join(given)}): that is not for a "
            "syncer of your own, which sends results on behind the training anyway; leave it out"
        )


def _check_left_out(config: SyncConfig) -> None:
    if config.include and not config.sync_artifacts:
        chooses = "chooses artifacts, and none are synced; add sync_artifacts=True, or leave it out"
        raise ConfigError(f"SyncConfig(include=...) {chooses}")
    for pattern in config.exclude:
        if leaves_nothing(pattern):
            raise ConfigError(
                f"SyncConfig(exclude=...): {pattern!r} matches every file of a checkpoint, and "
                "would store empty ones; name what is to be left out"
            )


def _check_syncer(syncer: Any, place: Any, is_bucket: bool) -> None:
    if place is None:
        _check_syncer_alone(syncer)
        return
    if syncer is None:
        raise ConfigError(
            f"SyncConfig(upload_dir={redacted(place)!r}, syncer=None): None says that nothing is "
            "synced; leave one of them out"
        )
    fits = CloudSyncer if is_bucket else SharedDirectorySyncer
    if syncer != AUTO and not isinstance(syncer, fits):
        raise ConfigError(
            f'SyncConfig(upload_dir={redacted(place)!r}, syncer={_named(syncer)}): "auto" or a '
            f"{fits.__name__} is needed; {own_syncers(syncer)}"
        )


def _check_own(syncer: Syncer, config: SyncConfig) -> None:
    named, place = f"SyncConfig(syncer={_named(syncer)}", config.upload_dir
    if config.storage_options:
        raise ConfigError(
            f"{named}, storage_options=...): these are for a bucket to which workers write "
            "themselves; a syncer of your own has its credentials and settings from you: leave "
            "storage_options out"
        )
    if place is None:
        raise ConfigError(
            f"{named}): a syncer of your own needs a place to sync to: give upload_dir, or use "
            'syncer="auto"'
        )
    if not isinstance(place, (str, os.PathLike)) or not os.fspath(place).strip("/ "):
        raise ConfigError(f"{named}, upload_dir={place!r}): what the syncer understands is needed")


def _check_syncer_alone(syncer: Any) -> None:
    if syncer is None or syncer == AUTO or isinstance(syncer, ObjectStoreSyncer):
        return
    if isinstance(syncer, Syncer):
        raise ConfigError(f"SyncConfig(syncer={_named(syncer)}): it needs upload_dir")
    raise ConfigError(
        f'SyncConfig(syncer={syncer!r}): "auto", an ObjectStoreSyncer or None is needed; a bucket '
        f'wants upload_dir="s3://bucket/path"; {own_syncers(syncer)}, and needs upload_dir'
    )


def _named(syncer: Any) -> str:
    return f"{type(syncer).__name__}(...)" if isinstance(syncer, Syncer) else repr(syncer)
