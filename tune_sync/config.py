"""What users set. Checked when built; every default is a named constant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ray.tune import SyncConfig as RaySyncConfig

from tune_sync.errors import ConfigError
from tune_sync.syncers.base import Syncer
from tune_sync.syncers.object_store import ObjectStoreSyncer

# Ray's own: long enough that small files of many trials don't flood the home node.
DEFAULT_SYNC_PERIOD_S = 300
# Ray's own: half an hour without an answer is a hang, not a slow disk.
DEFAULT_SYNC_TIMEOUT_S = 1800

AUTO = "auto"


@dataclass
class SyncConfig(RaySyncConfig):  # type: ignore[misc]  # Ray has no types
    """How results of trials get to the driver's node. Put it into `tune_sync.RunConfig`.

    Args:
        sync_period: Seconds between two syncs of a trial's artifacts.
        sync_timeout: Seconds to wait for an answer of the home node before a sync fails.
        sync_artifacts: Whether files that a trial writes into its working directory are synced.
        sync_artifacts_on_checkpoint: Whether they are synced with every checkpoint too.
        syncer: "auto" and `ObjectStoreSyncer()`: nodes share nothing; results go to the driver's
            node through the Ray object store. None: the storage path is the same directory on
            all nodes, nothing has to be moved.
        include: Glob patterns on paths relative to the trial directory; if given, only files
            that match one are stored. A pattern that matches a directory takes all in it.
        exclude: The same; files that match one are not stored.
        strict: What happens when ranks of one trial report files of equal name and different
            bytes: False stores the lowest rank's and warns, True raises.

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
    _accepted: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("sync_period", "sync_timeout"):
            _check_seconds(name, getattr(self, name))
        for name in ("sync_artifacts", "sync_artifacts_on_checkpoint", "strict"):
            _check_flag(name, getattr(self, name))
        for name in ("include", "exclude"):
            setattr(self, name, _check_patterns(name, getattr(self, name)))
        _check_syncer(self.syncer)

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


def _check_syncer(syncer: Any) -> None:
    if syncer is None or syncer == AUTO or isinstance(syncer, ObjectStoreSyncer):
        return
    if isinstance(syncer, Syncer):
        raise ConfigError(
            f"SyncConfig(syncer={type(syncer).__name__}(...)): a syncer of your own needs a place "
            'to sync to, and upload_dir is not available; use syncer="auto"'
        )
    raise ConfigError(
        f'SyncConfig(syncer={syncer!r}): "auto", an ObjectStoreSyncer or None is needed'
    )
