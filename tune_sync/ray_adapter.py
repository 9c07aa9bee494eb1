"""What users give to Ray: `RunConfig`, `Checkpoint`, and the callback that ties them together.

The only module that relies on how Ray Tune calls us; docs/design/ray-adapter.md says on what.
"""

from __future__ import annotations

import copy
import itertools
import logging
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import ray
import ray.train
import ray.tune

from tune_sync.agents.connect import RayConnector, node_id, start_home
from tune_sync.config import SyncConfig
from tune_sync.errors import ConfigError, NotStoredError
from tune_sync.filesystem import SyncHandler, open_handler, warn_of_conflicts
from tune_sync.spec import Options, Spec
from tune_sync.syncers.base import Syncer

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


@dataclass
class RunConfig(ray.tune.RunConfig):  # type: ignore[misc]
    """`ray.tune.RunConfig` whose `sync_config` is acted upon. Give it to `tune.Tuner`.

    All of Ray's fields keep their meaning. `storage_path` is a directory of the driver's node
    (default `~/ray_results`); `~`, variables and relative paths are resolved once, here.

    Args:
        overwrite: If the experiment's directory holds an earlier experiment: False refuses to
            start, True moves it aside to a name of its own.

    Raises:
        ConfigError: A combination of fields that cannot work.
    """

    overwrite: bool = False
    # What Ray's class declares; here so that they are known as what they become.
    name: str | None = None
    storage_path: Any = None
    storage_filesystem: Any = None
    sync_config: Any = None

    def __post_init__(self) -> None:
        self.sync_config = _own_sync_config(self.sync_config)
        if isinstance(getattr(self.storage_filesystem, "handler", None), SyncHandler):
            self.storage_filesystem = None  # dataclasses.replace() of another RunConfig
        if self.storage_filesystem is not None:
            raise ConfigError(
                "tune_sync.RunConfig brings its own storage_filesystem; leave that field out, or "
                "use ray.tune.RunConfig to do without tune_sync"
            )
        super().__post_init__()
        self.storage_path = resolve_storage_path(self.storage_path)
        self._attach("move_aside" if self.overwrite else "error")
        self._ready = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "name" and value and self.__dict__.get("_ready") and not self.name:
            value = _claim_name(self.storage_path, value)
        object.__setattr__(self, name, value)
        if not self.__dict__.get("_ready"):
            return
        # Ray assigns these three when it restores an experiment from where it now is, and `name`
        # alone when it chooses one for a new experiment.
        if name == "name" and value:
            self._handler().bind(value)
        elif name == "storage_filesystem" and value is None:
            object.__setattr__(self, "storage_path", resolve_storage_path(self.storage_path))
            self._attach("resume")
        elif name == "storage_filesystem":
            logger.warning("restoring through %s: results are not synced by tune_sync", value)
            others = [c for c in self.callbacks or () if not isinstance(c, SyncCallback)]
            object.__setattr__(self, "callbacks", others)

    def __copy__(self) -> RunConfig:
        # Two tuners made from one RunConfig are two runs.
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        object.__setattr__(twin, "callbacks", list(self.callbacks or ()))
        twin._attach(self._handler().on_existing)
        return twin

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._handler().is_driver = True

    def _handler(self) -> SyncHandler:
        handler: SyncHandler = self.storage_filesystem.handler
        return handler

    def _attach(self, on_existing: str) -> None:
        """A fresh filesystem and callback for the present name and storage path."""
        filesystem = make_filesystem(
            self.sync_config, self.storage_path, self.name or "", on_existing
        )
        others = [c for c in self.callbacks or () if not isinstance(c, SyncCallback)]
        object.__setattr__(self, "storage_filesystem", filesystem)
        object.__setattr__(self, "callbacks", [*others, SyncCallback(filesystem)])


class SyncCallback(ray.tune.Callback):  # type: ignore[misc]
    """Tells tune_sync of Ray's driver-side events. Part of `RunConfig` and `run_config_kwargs`.

    Args:
        filesystem: The run's filesystem.
    """

    def __init__(self, filesystem: pafs.PyFileSystem) -> None:
        self._filesystem = filesystem

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._handler.is_driver = True

    @property
    def _handler(self) -> SyncHandler:
        handler: SyncHandler = self._filesystem.handler
        return handler

    def setup(self, *args: Any, **info: Any) -> None:
        """Start the home agent, so that trials on other nodes find the way."""
        handler = self._handler
        handler.start().begun = True
        begin_home(handler)
        logger.info("results of all nodes are kept in %s", handler.experiment_root)

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Stop at once if another run took over the directory."""
        self._handler.start().lease.check()

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Drop what the trial left in staging."""
        self._discard(trial)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Drop what the trial left in staging."""
        self._discard(trial)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Drop what the trial left in staging."""
        self._discard(trial)

    def on_checkpoint(
        self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any
    ) -> None:
        """Publish a checkpoint, or refuse it: Ray does not register one that raises here."""
        handler = self._handler
        if checkpoint.filesystem != self._filesystem:
            return
        try:
            conflicts = handler.publish(checkpoint.path)
        except Exception as error:
            handler.start().refused[checkpoint.path] = error
            raise
        warn_of_conflicts(checkpoint.path, conflicts)
        # Every process that opens it gets a directory of its own: with Ray's class, a second
        # reader on a node downloads over the files that the first one is reading.
        if type(checkpoint) in (ray.tune.Checkpoint, ray.train.Checkpoint):
            checkpoint.__class__ = Checkpoint

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """Publish what is left, and give the directory back.

        Raises:
            NotStoredError: Something accepted is not stored; Ray's fit() raises it.
        """
        run = self._handler.run
        if run is None or run.closed:
            return
        try:
            run.flush(self._handler.spec.options.timeout_s)
        except Exception as error:
            raise NotStoredError(
                f"the run ended, but not all is stored in {run.root}: {error}; what is stored: "
                f'tune.Tuner.restore("{run.root}", trainable=...).get_results()'
            ) from error
        finally:
            run.close()

    def _discard(self, trial: Any) -> None:
        run = self._handler.run
        if run is not None and trial.storage.trial_dir_name:
            staged = run.home.committer.attempts(trial.storage.trial_dir_name)
            run.publisher.discard_later(staged)


class Checkpoint(ray.tune.Checkpoint):  # type: ignore[misc]
    """`ray.tune.Checkpoint` with two differences.

    Reported after `from_directory`, it travels faster and by the rules of `tune_sync.tree` for
    links; and every process that opens it reads from a directory of its own.
    """

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """A checkpoint made of a local directory, to be reported with `tune.report`.

        Raises:
            FileNotFoundError, NotADirectoryError: It is no directory.
            PathRefusedError: A link in it that cannot be sent.
        """
        from tune_sync.source import SourceHandler

        root = Path(path).expanduser().absolute()
        return cls(str(root), filesystem=pafs.PyFileSystem(SourceHandler(root)))

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """The checkpoint as a local directory; see `ray.tune.Checkpoint.as_directory`."""
        if getattr(getattr(self.filesystem, "handler", None), "is_source", False):
            yield self.path
            return
        with super().as_directory() as directory:
            yield directory

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._uuid = uuid.uuid4()


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
    config = _own_sync_config(sync_config)
    path = resolve_storage_path(storage_path)
    if api == "train" and _train_is_v2():
        from tune_sync.train_adapter import train_kwargs

        return train_kwargs(config, path, name, on_existing)
    filesystem = make_filesystem(config, path, name or "", on_existing)
    kwargs = {
        "storage_path": path, "storage_filesystem": filesystem, "sync_config": config,
        "callbacks": [SyncCallback(filesystem)],
    }  # fmt: skip
    return {"name": name, **kwargs} if name else kwargs


def make_filesystem(
    config: SyncConfig, storage_path: str, experiment: str, on_existing: str, depth: int = 1
) -> pafs.PyFileSystem:
    """A new run's filesystem, on the driver."""
    timeout_s = (
        config.syncer.sync_timeout if isinstance(config.syncer, Syncer) else config.sync_timeout
    )
    options = Options(
        tuple(config.include), tuple(config.exclude), timeout_s, config.strict,
        shared=config.syncer is None, checkpoint_depth=depth,
    )  # fmt: skip
    spec = Spec(uuid.uuid4().hex, storage_path, "", "", None, options)
    handler = open_handler(spec, RayConnector())
    handler.is_driver = True
    handler.on_existing = on_existing
    if experiment:
        handler.bind(experiment)
    return pafs.PyFileSystem(handler)


def begin_home(handler: SyncHandler) -> None:
    """Make this node the home of a run: start the agent and tell the filesystem."""
    handler.spec = replace(handler.spec, address=start_home(node_id()))


def resolve_storage_path(path: str | os.PathLike[str] | None) -> str:
    """A local directory, absolute: `~`, `$VARIABLES`, `file://` and relative paths resolved.

    Raises:
        ConfigError: A URL of another kind.
    """
    text = os.fspath(path) if path is not None else "~/ray_results"
    scheme, mark, rest = text.partition("://")
    if mark and scheme == "file":
        text = rest
    elif mark and len(scheme) > 1:
        raise ConfigError(
            f"storage_path={text!r}: a directory of the driver's node is needed, as results go "
            "there through the Ray object store; for a bucket use ray.tune.RunConfig"
        )
    return os.path.abspath(os.path.expanduser(os.path.expandvars(text)))


def _claim_name(storage_path: str, name: str) -> str:
    """Ray's default name, or one like it: those of two runs in the same second are equal."""
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


def _own_sync_config(config: Any) -> SyncConfig:
    if config is None:
        return SyncConfig().accepted()
    if isinstance(config, SyncConfig):
        return copy.copy(config).accepted()
    if isinstance(config, ray.tune.SyncConfig):
        return SyncConfig.from_ray(config).accepted()
    raise ConfigError(f"sync_config={config!r}: a tune_sync.SyncConfig is needed")


def _train_is_v2() -> bool:
    return "worker_runtime_env" in {f.name for f in fields(ray.train.RunConfig)}
