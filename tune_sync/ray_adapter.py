"""What users give to Ray Tune: `RunConfig`, and the callback that hears of the driver's events.

Relies on how Ray Tune calls us; docs/design/ray-adapter.md says on what, and who else does.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pafs
import ray
import ray.train
import ray.tune

from tune_sync import layout
from tune_sync.agents.node_agents import RayNodes
from tune_sync.buckets.url import path_of_url
from tune_sync.checkpoint import Checkpoint
from tune_sync.destination import Destination, parse_destination, resolve_destination
from tune_sync.errors import (
    AskedTwiceError,
    ConfigError,
    LeaseLostError,
    NotStoredError,
    TuneSyncError,
)
from tune_sync.filesystem import SyncHandler
from tune_sync.homes.saved_state import check_restored
from tune_sync.manifest import warn_of_conflicts
from tune_sync.metrics import plain_metrics
from tune_sync.new_run import (
    OwnSync,
    begin_home,
    claim_name,
    copy_sync_config,
    make_filesystem,
    take_left_behind,
)
from tune_sync.restoring import ray_records
from tune_sync.restoring.dropped_saves import DroppedSaves
from tune_sync.restoring.lost_checkpoints import go_on_without_lost
from tune_sync.restoring.restored import adopt_published
from tune_sync.spec import Spec
from tune_sync.storage_options import kept

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


@dataclass
class RunConfig(ray.tune.RunConfig):  # type: ignore[misc]
    """`ray.tune.RunConfig` whose `sync_config` is acted upon. Give it to `tune.Tuner`.

    All of Ray's fields keep their meaning. `storage_path` is a directory of the driver's node
    (default `~/ray_results`); `~`, variables and relative paths are resolved once, here. With
    `SyncConfig(upload_dir=...)` leave it out.

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
        if not isinstance(self.overwrite, bool):
            raise ConfigError(f"RunConfig(overwrite={self.overwrite!r}): True or False is needed")
        if self.name is not None and not isinstance(self.name, str):
            raise ConfigError(f"RunConfig(name={self.name!r}): a string is needed")
        if not isinstance(self.callbacks, (list, tuple, type(None))):
            raise ConfigError(f"RunConfig(callbacks={self.callbacks!r}): a list is needed")
        self.sync_config = copy_sync_config(self.sync_config)
        if isinstance(getattr(self.storage_filesystem, "handler", None), SyncHandler):
            self.storage_filesystem = None  # dataclasses.replace() of another RunConfig
        if self.storage_filesystem is not None:
            raise ConfigError(
                "tune_sync.RunConfig brings its own storage_filesystem; leave that field out, or "
                "use ray.tune.RunConfig to do without tune_sync"
            )
        place = resolve_destination(self.sync_config.direct_dir, self.storage_path)
        object.__setattr__(self, "storage_path", place.path)
        super().__post_init__()
        self._set_place(place)
        self._attach("move_aside" if self.overwrite else "error")
        self._ready = True

    def __setattr__(self, name: str, value: Any) -> None:
        # Ray assigns name, storage_path and storage_filesystem when it restores an experiment from
        # where it now is, and `name` alone when it chooses one for a new experiment.
        is_ready = self.__dict__.get("_ready", False)
        if name == "name" and value and is_ready and not self.name:
            value = claim_name(self._place(), value)
        object.__setattr__(self, name, value)
        if is_ready and name == "name" and value:
            self._was_named(value)
        elif is_ready and name == "storage_filesystem":
            self._was_restored(value)

    def _was_named(self, name: str) -> None:
        if self._handler().run is None:
            self._handler().bind(name)

    def _was_restored(self, filesystem: Any) -> None:
        if filesystem is None:
            self._was_restored_from_place()
        elif isinstance(getattr(filesystem, "handler", None), SyncHandler):
            self._was_restored_with_options(filesystem.handler.spec)
        else:
            self._was_restored_without_us(filesystem)

    def _was_restored_from_place(self) -> None:
        """By `tune.Tuner.restore(path)`."""
        self._set_place(parse_destination(self.storage_path))
        if self._place().scheme:  # Ray took the name out of a URL
            object.__setattr__(self, "name", path_of_url(self.name or ""))
        self._attach("resume")

    def _was_restored_with_options(self, spec: Spec) -> None:
        """By `tune.Tuner.restore(**restore_kwargs(...))`."""
        self.sync_config.storage_options = kept(spec.key)
        self._set_place(Destination(spec.root, spec.scheme))
        self._attach("resume")

    def _was_restored_without_us(self, filesystem: Any) -> None:
        """By `tune.Tuner.restore(path, storage_filesystem=...)`, with one of the user's own."""
        logger.warning("restoring through %s: results are not synced by tune_sync", filesystem)
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
        for callback in self.callbacks or ():
            if isinstance(callback, SyncCallback) and callback.own_sync is not None:
                self.sync_config.syncer = callback.own_sync.syncer  # left out of its own pickle
        self._handler().is_driver = True
        self._handler().on_existing = "move_aside" if self.overwrite else "error"

    def _handler(self) -> SyncHandler:
        handler: SyncHandler = self.storage_filesystem.handler
        return handler

    def _set_place(self, place: Destination) -> None:
        object.__setattr__(self, "storage_path", place.path)
        object.__setattr__(self, "_scheme", place.scheme)

    def _place(self) -> Destination:
        return Destination(self.storage_path, self.__dict__.get("_scheme", ""))

    def _attach(self, on_existing: str) -> None:
        """A fresh filesystem and callback for the present name and storage path."""
        filesystem = make_filesystem(self.sync_config, self._place(), self.name or "", on_existing)
        others = [c for c in self.callbacks or () if not isinstance(c, SyncCallback)]
        object.__setattr__(self, "storage_filesystem", filesystem)
        callback = SyncCallback(filesystem, OwnSync.of(self.sync_config))
        object.__setattr__(self, "callbacks", [*others, callback])


class SyncCallback(ray.tune.Callback):  # type: ignore[misc]
    """Tells tune_sync of Ray's driver-side events. Part of `RunConfig` and `run_config_kwargs`.

    Args:
        filesystem: The run's filesystem.
        own_sync: The user's own way to send results on; None without one.
    """

    own_sync: OwnSync | None = None  # also in pickles of versions that did not know it

    def __init__(self, filesystem: pafs.PyFileSystem, own_sync: OwnSync | None = None) -> None:
        self._filesystem = filesystem
        self.own_sync = own_sync
        self._on_existing = filesystem.handler.on_existing
        self._to_restore: frozenset[str] = frozenset()
        self._saves = DroppedSaves()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_saves": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._saves = DroppedSaves()
        self._handler.is_driver = True
        self._handler.on_existing = self._on_existing

    @property
    def _handler(self) -> SyncHandler:
        handler: SyncHandler = self._filesystem.handler
        return handler

    def setup(self, *args: Any, **info: Any) -> None:
        """Start the home agent, so that trials on other nodes find the way."""
        handler = self._handler
        run = handler.start()
        self._to_restore = run.saved_trials
        try:
            begin_home(handler)
            if self._to_restore:
                take_left_behind(handler)
            if self.own_sync is not None:
                self.own_sync.begin(handler)
        except BaseException:
            run.give_back()
            raise
        if handler.spec.options.stages:
            handler.files.learn(run)
            run.write_behind(RayNodes(handler.spec))
        run.begun = True
        logger.info("results of all nodes are kept in %s", handler.spec.where)

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Stop at once if another run took over the directory, or Ray starts afresh.

        At the first step after a restore, bring Ray's record up to what is published.
        """
        run = self._handler.start()
        run.check_lease()
        run.note_refused()
        if self._to_restore:
            check_restored(run.where, self._to_restore, (trial.trial_id for trial in trials))
            self._to_restore = frozenset()
            adopt_published(run, trials, self._filesystem)
        go_on_without_lost(run, trials, self._filesystem)
        self._keep_dropped_saves(trials)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Publish what the trial is about to load, if that is still to be done."""
        self._saves.started(trial)
        self._saves.register(trial)
        run, checkpoint = self._handler.run, trial.checkpoint
        if run is not None and checkpoint is not None and run.behind is not None:
            run.behind.check_nodes(layout.below(str(run.root), checkpoint.path) or "")
            go_on_without_lost(run, trials, self._filesystem)
        self._publish_early(trial)

    def on_trial_save(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Ray has processed a save."""
        self._saves.processed(trial)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Drop what the trial left in staging."""
        self._saves.failed(trial)
        self._discard(trials, trial)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Drop what the trial left in staging."""
        self._saves.failed(trial)
        self._discard(trials, trial)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Drop what the trial left in staging."""
        self._saves.stopped(trial)
        self._discard(trials, trial)

    def on_checkpoint(
        self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any
    ) -> None:
        """Publish a checkpoint, or refuse it: Ray does not register one that raises here."""
        if checkpoint.filesystem != self._filesystem:
            return
        number = ray_records.own_number(trial, checkpoint)
        try:
            self._publish(checkpoint, ray_records.last_metrics(trial))
        except AskedTwiceError:
            raise
        except Exception as error:
            self._handler.start().refused[checkpoint.path] = error
            ray_records.reserve(trial, -1 if number is None else number)
            raise
        self._saves.register(trial)
        if number is not None:
            ray_records.align(trial, number)

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """Publish what is left, and give the directory back.

        Raises:
            NotStoredError: Something accepted is not stored; Ray's fit() raises it.
            LeaseLostError: Another run took over; the directory is not ours to complete.
        """
        run = self._handler.run
        if run is None or run.closed:
            return
        try:
            run.check_lease()
            self._keep_dropped_saves(trials)
            self._handler.files.flush(self._handler.spec.options.timeout_s)
            run.flush(self._handler.spec.options.timeout_s)
            self._check_files()
        except LeaseLostError:
            raise
        except Exception as error:
            raise NotStoredError(
                f"the run ended, but not all is stored in {run.where}: {error}; what is stored: "
                f'tune.Tuner.restore("{run.where}", trainable=...).get_results()'
            ) from error
        finally:
            run.close()

    def _check_files(self) -> None:
        handler = self._handler
        unstored: dict[str, Any] = dict(handler.files.unstored)
        for key, (told_s, reason) in handler.connector.unstored(handler.spec).items():
            found = handler.start().home.info(key)
            if (
                found is None or found.is_dir or found.modified_s < told_s
            ):  # else it was sent again since
                unstored[key] = reason
        if unstored:
            raise NotStoredError("; ".join(f"{key}: {e}" for key, e in unstored.items()))

    def _publish(self, checkpoint: Any, metrics: dict[str, Any]) -> None:
        conflicts = self._handler.publish(checkpoint.path, plain_metrics(metrics))
        warn_of_conflicts(checkpoint.path, conflicts)
        # Every process that opens it gets a directory of its own: with Ray's class, a second
        # reader on a node downloads over the files that the first one is reading.
        if type(checkpoint) in (ray.tune.Checkpoint, ray.train.Checkpoint):
            checkpoint.__class__ = Checkpoint

    def _publish_early(self, trial: Any) -> None:
        """Publish the checkpoint that a trial will load, though Ray did not register it.

        Population Based Training clones a checkpoint as soon as it is saved. Ray registers it
        later, or never, if the trial that saved it is paused meanwhile.
        """
        result = ray_records.current(trial)
        checkpoint = trial.checkpoint
        if checkpoint is None or checkpoint.filesystem != self._filesystem:
            return
        metrics = plain_metrics(result.metrics or {}) if result else None
        try:
            self._handler.publish_early(checkpoint.path, metrics)
        except (TuneSyncError, OSError) as error:  # that trial fails then, not the run
            logger.warning("cannot publish %s, which %s loads: %s", checkpoint.path, trial, error)

    def _keep_dropped_saves(self, trials: list[Any]) -> None:
        """Publish saves that Ray has dropped; it hears of them when it next asks for the trial."""
        self._saves.look()
        for trial, result in self._saves.ended():
            try:
                self._keep_dropped_save(trial, result)
            except (TuneSyncError, OSError) as error:  # nothing that Ray knows of is missing
                logger.warning("cannot publish %s: %s", result.checkpoint.path, error)
            if trial.is_finished():
                self._discard(trials, trial)

    def _keep_dropped_save(self, trial: Any, result: Any) -> None:
        number = ray_records.own_number(trial, result.checkpoint)
        if number is None or result.checkpoint.filesystem != self._filesystem:
            return
        kept = ray_records.kept(trial)
        is_late = trial.is_finished() or number < max(kept, default=-1)
        if number in kept or (is_late and ray_records.keeps_few(trial)):
            return
        self._publish(result.checkpoint, result.metrics or {})
        if not is_late:
            self._saves.keep(trial, result)

    def _discard(self, trials: list[Any], trial: Any) -> None:
        run, directory = self._handler.run, ray_records.directory_of(trial)
        if run is None or not directory or self._saves.waits_for(trial):
            return
        own = f"{run.root}/{directory}/"
        for other in (t for t in trials if t is not trial and t.checkpoint):
            if other.checkpoint.path.startswith(own):
                self._publish_early(other)
        run.discard_staged(directory)
        number = layout.checkpoint_number(run.latest(directory))
        ray_records.reserve(trial, -1 if number is None else number)
