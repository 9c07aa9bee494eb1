"""What users set. Checked when built; every default is a named constant."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ray.tune import SyncConfig as RaySyncConfig

from tune_sync.buckets.url import is_bucket_url, parse_bucket_url
from tune_sync.errors import ConfigError
from tune_sync.filters import leaves_nothing
from tune_sync.syncers.base import Syncer
from tune_sync.syncers.cloud import CloudSyncer
from tune_sync.syncers.object_store import ObjectStoreSyncer
from tune_sync.syncers.shared_directory import SharedDirectorySyncer

# Ray's own: long enough that small files of many trials don't flood the home node.
DEFAULT_SYNC_PERIOD_S = 300
# Ray's own: half an hour without an answer is a hang, not a slow disk.
DEFAULT_SYNC_TIMEOUT_S = 1800

AUTO = "auto"
STORED, STAGED = "stored", "staged"
RAISE, CONTINUE = "raise", "continue"

_RESTORABLE = re.compile(r"[\w\-.=/:@+~]+", re.ASCII)
# What a syncer of the user's own becomes in a pickle: Ray sends settings to all trials, and the
# syncer's code may be on the driver's node only.
LEFT_OUT = "left out of the pickle"
# These say how workers write; their methods are not called.
_BUILT_IN = (CloudSyncer, ObjectStoreSyncer, SharedDirectorySyncer)
# As in rsync's host:path, and none of Windows' drives.
_HOST_AND_PATH = re.compile(r"[\w.\-@]{2,}:(?!//)")


@dataclass
class SyncConfig(RaySyncConfig):  # type: ignore[misc]  # Ray has no types
    """How results of trials are stored, and where. Put it into `tune_sync.RunConfig`.

    Args:
        sync_period: Seconds between two syncs of a trial's artifacts.
        sync_timeout: Seconds to wait for an answer of the home node before a sync fails.
        sync_artifacts: Whether files that a trial writes into its working directory are synced.
        sync_artifacts_on_checkpoint: Whether they are synced with every checkpoint too.
        syncer: "auto" picks by `upload_dir`. Without one, "auto" and `ObjectStoreSyncer()`: nodes
            share nothing; results go to the driver's node through the Ray object store. None: the
            storage path is the same directory on all nodes, nothing has to be moved. With one,
            `CloudSyncer()` and `SharedDirectorySyncer()` say what "auto" would pick. Any other
            `Syncer`, such as `CommandSyncer(...)`: results go to the driver's node as without
            `upload_dir`, and from there the syncer sends them to `upload_dir`.
        include: Glob patterns on paths relative to the trial directory; if given, only artifacts
            that match one are stored. A pattern that matches a directory takes all in it.
        exclude: The same; files that match one are not stored, also those of checkpoints.
        strict: What happens when ranks of one trial report files of equal name and different
            bytes: False stores the lowest rank's and warns, True raises.
        upload_dir: Where results go: the URL of a bucket (`s3://bucket/path`, `gs://`, `abfs://`,
            any of fsspec), to which every worker writes itself; or a directory that all nodes see
            (a path, `file://`); with a syncer of your own whatever that understands. None: the
            driver's node, below `RunConfig.storage_path`.
        storage_options: Credentials and settings of the bucket, where the usual environment does
            not have them: for `s3://` key, secret, token, endpoint_url, region, anon,
            request_timeout_s, connect_timeout_s. They are stored nowhere, so a restore is given
            them again: by `restore_kwargs`, or `TUNE_SYNC_STORAGE_OPTIONS` in the environment.
        wait_for: What `tune.report` waits for: "stored", until the checkpoint is at its
            destination; "staged", until it is safe on the disk of its own node: it is sent on
            behind the training, and is lost if that node is lost before.
        on_sync_error: What happens if the destination does not answer, after all tries: "raise"
            fails the trial; "continue" lets it go on, and sends what is staged on its node once
            the destination answers again.
        staging_dir: For these two: the directory of every node where checkpoints are staged.
            None: one below the node's temporary directory.
        staging_limit_bytes: How much a run may stage on a node before reports wait. None: a
            quarter of what is free there.

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
    staging_dir: str | os.PathLike[str] | None = None
    staging_limit_bytes: int | None = None
    _accepted: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("sync_period", "sync_timeout"):
            _check_seconds(name, getattr(self, name))
        for name in ("sync_artifacts", "sync_artifacts_on_checkpoint", "strict"):
            _check_flag(name, getattr(self, name))
        for name in ("include", "exclude"):
            setattr(self, name, _check_patterns(name, getattr(self, name)))
        _check_exclude(self.exclude)
        _check_choice("wait_for", self.wait_for, (STORED, STAGED))
        _check_choice("on_sync_error", self.on_sync_error, (RAISE, CONTINUE))
        _check_staging(self)
        if self.own_syncer is not None:
            _check_own(self.own_syncer, self)
            return
        is_bucket = _check_upload_dir(self.upload_dir)
        _check_options(self.storage_options, is_bucket)
        _check_syncer(self.syncer, self.upload_dir, is_bucket)

    @property
    def timeout_s(self) -> float:
        """Seconds to wait for an answer: ours, or if that is the default a built-in syncer's."""
        if isinstance(self.syncer, _BUILT_IN) and self.sync_timeout == DEFAULT_SYNC_TIMEOUT_S:
            return self.syncer.sync_timeout
        return self.sync_timeout

    @property
    def bucket_options(self) -> Mapping[str, Any] | None:
        """`storage_options`, or if there are none those of a `CloudSyncer`."""
        if self.storage_options is None and isinstance(self.syncer, CloudSyncer):
            return self.syncer.storage_options or None
        return self.storage_options

    def __getstate__(self) -> dict[str, Any]:
        syncer = LEFT_OUT if self.own_syncer is not None else self.syncer
        # Secrets are never pickled.
        return {**self.__dict__, "storage_options": None, "syncer": syncer}

    def __deepcopy__(self, memo: dict[int, Any]) -> SyncConfig:
        return self.__copy__()

    def __copy__(self) -> SyncConfig:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    @property
    def stages(self) -> bool:
        """Whether checkpoints are staged on the node that writes them."""
        return self.wait_for == STAGED or self.on_sync_error == CONTINUE

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
        if not self._accepted:
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


def _check_seconds(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ConfigError(f"SyncConfig({name}={value!r}): seconds above zero are needed")


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"SyncConfig({name}={value!r}): True or False is needed")


def _check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        shown = " or ".join(f'"{choice}"' for choice in choices)
        raise ConfigError(f"SyncConfig({name}={value!r}): {shown} is needed")


def _check_staging(config: SyncConfig) -> None:
    limit, place = config.staging_limit_bytes, config.staging_dir
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit <= 0):
        raise ConfigError(f"SyncConfig(staging_limit_bytes={limit!r}): a size above zero is needed")
    if place is not None and not (
        isinstance(place, (str, os.PathLike)) and os.path.isabs(os.fspath(place))
    ):
        raise ConfigError(f"SyncConfig(staging_dir={place!r}): an absolute path is needed")
    if (limit is not None or place is not None) and not config.stages:
        raise ConfigError(
            'SyncConfig(staging_...): nothing is staged without wait_for="staged" or '
            'on_sync_error="continue"'
        )


def _check_patterns(name: str, value: Any) -> tuple[str, ...]:
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    if not listed or not all(isinstance(pattern, str) for pattern in value):
        raise ConfigError(f'SyncConfig({name}={value!r}): a list of patterns is needed: ["*.tmp"]')
    for pattern in value:
        if not pattern or pattern.startswith("/"):
            raise ConfigError(
                f"SyncConfig({name}=...): {pattern!r} has to be relative to the trial directory"
            )
    return tuple(value)


def _check_exclude(patterns: Sequence[str]) -> None:
    for pattern in patterns:
        if leaves_nothing(pattern):
            raise ConfigError(
                f"SyncConfig(exclude=...): {pattern!r} matches every file of a checkpoint, and "
                "would store empty ones; name what is to be left out"
            )


def _check_upload_dir(place: Any) -> bool:
    """Whether it is a bucket."""
    if place is None:
        return False
    if not isinstance(place, (str, os.PathLike)) or not os.fspath(place):
        raise ConfigError(f"SyncConfig(upload_dir={place!r}): a URL or a path is needed")
    if not is_bucket_url(os.fspath(place)):
        if _HOST_AND_PATH.match(os.fspath(place)):
            raise ConfigError(
                f"SyncConfig(upload_dir={place!r}): neither a URL nor a path; where a command of "
                "your own reaches it, give that: syncer=CommandSyncer(...)"
            )
        return False
    try:
        parse_bucket_url(os.fspath(place))
    except ConfigError as error:
        raise ConfigError(f"SyncConfig(upload_dir=...): {error}") from error
    return True


def _check_options(options: Any, is_bucket: bool) -> None:
    if options is None:
        return
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise ConfigError("SyncConfig(storage_options=...): a dict with names as keys is needed")
    if options and not is_bucket:
        raise ConfigError("SyncConfig(storage_options=...): there is no bucket as upload_dir")


def _check_syncer(syncer: Any, place: Any, is_bucket: bool) -> None:
    if place is None:
        _check_syncer_alone(syncer)
        return
    if syncer is None:
        raise ConfigError(
            f"SyncConfig(upload_dir={str(place)!r}, syncer=None): None says that nothing is "
            "synced; leave one of them out"
        )
    fits = CloudSyncer if is_bucket else SharedDirectorySyncer
    if syncer != AUTO and not isinstance(syncer, fits):
        raise ConfigError(
            f'SyncConfig(upload_dir={str(place)!r}, syncer={_named(syncer)}): "auto" or a '
            f"{fits.__name__} is needed"
        )


def _check_own(syncer: Syncer, config: SyncConfig) -> None:
    named, place = f"SyncConfig(syncer={_named(syncer)}", config.upload_dir
    if config.stages:
        raise ConfigError(
            f'{named}): wait_for="staged" and on_sync_error="continue" are not for a syncer of '
            "your own, which sends results on behind the training anyway; leave them out"
        )
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
        f'SyncConfig(syncer={syncer!r}): "auto", an ObjectStoreSyncer or None is needed; or a '
        "Syncer with an upload_dir"
    )


def _named(syncer: Any) -> str:
    return f"{type(syncer).__name__}(...)" if isinstance(syncer, Syncer) else repr(syncer)
