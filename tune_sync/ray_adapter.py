"""What users give to Ray Tune: `RunConfig`, and the callback that hears of the driver's events.

Relies on how Ray Tune calls us; docs/design/ray-adapter.md says on what, and who else does.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow.fs as pafs
import ray
import ray.tune

from tune_sync import layout
from tune_sync.agents.node_agents import RayNodes
from tune_sync.buckets.url import is_bucket_url, path_of_url
from tune_sync.destination import Destination, is_file_url, parse_destination, resolve_destination
from tune_sync.ended_run import end_run
from tune_sync.errors import ConfigError, TuneSyncError
from tune_sync.field_checks import check_run_fields, names_its_fields
from tune_sync.filesystem import SyncHandler
from tune_sync.hearing import Hearing, OurCallback, around
from tune_sync.homes.saved_state import TrialNames, check_restored
from tune_sync.homes.saved_tuner import keep_copy
from tune_sync.metrics import plain_metrics
from tune_sync.new_run import (
    OwnSync,
    begin_home,
    claim_name,
    copy_sync_config,
    idle_period,
    make_backlog,
    make_filesystem,
    name_experiment,
    take_left_behind,
    told_place,
)
from tune_sync.restoring import ray_records
from tune_sync.restoring.best_kept import BestKept, check_score, keeps_all
from tune_sync.restoring.clones import Clones, clones_of
from tune_sync.restoring.dropped_saves import DroppedSaves
from tune_sync.restoring.lost_checkpoints import LostCheckpoints
from tune_sync.restoring.lost_space import check_saved, is_space_left_out
from tune_sync.restoring.restored import adopt_published
from tune_sync.restoring.unpublished import start_without_unpublished
from tune_sync.restoring.written_records import WrittenRecords
from tune_sync.run import Run
from tune_sync.spec import Spec
from tune_sync.storage_options import kept

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


@names_its_fields
@dataclass
class RunConfig(ray.tune.RunConfig):  # type: ignore[misc]
    """`ray.tune.RunConfig` whose `sync_config` is acted upon. Give it to `tune.Tuner`.

    All of Ray's fields keep their meaning. `storage_path` is a directory of the driver's node
    (default `~/ray_results`); `~`, variables and relative paths are resolved once, here. With
    `SyncConfig(upload_dir=...)` leave it out. A `name` such as "group/exp" is a directory in one.

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
        check_run_fields(self)
        self.sync_config = copy_sync_config(self.sync_config)
        if isinstance(getattr(self.storage_filesystem, "handler", None), SyncHandler):
            self.storage_filesystem = None  # dataclasses.replace() of another RunConfig
        if self.storage_filesystem is not None:
            raise ConfigError(
                "tune_sync.RunConfig brings its own storage_filesystem; leave that field out, or "
                "use ray.tune.RunConfig to do without tune_sync"
            )
        check_score(self.sync_config, self.checkpoint_config)
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
            value = claim_name(self._place(), value, is_shared=self.sync_config.is_shared)
        object.__setattr__(self, name, value)
        if is_ready and name == "name" and value:
            if self._handler().run is None:
                self._handler().bind(value)
        elif is_ready and name == "storage_filesystem":
            self._was_restored(value)

    def _was_restored(self, filesystem: Any) -> None:
        if filesystem is None:
            self._was_restored_from_place()
        elif isinstance(getattr(filesystem, "handler", None), SyncHandler):
            self._was_restored_with_options(filesystem.handler.spec)
        else:
            self._was_restored_without_us(filesystem)

    def _was_restored_from_place(self) -> None:
        """By `tune.Tuner.restore(path)`."""
        if is_bucket_url(self.storage_path) or is_file_url(self.storage_path):  # so is the name
            object.__setattr__(self, "name", path_of_url(self.name or ""))
        self._set_place(parse_destination(self.storage_path))
        self._attach("resume")

    def _was_restored_with_options(self, spec: Spec) -> None:
        """By `tune.Tuner.restore(**restore_kwargs(...))`."""
        self.sync_config.storage_options = kept(spec.key)
        self._set_place(Destination(spec.root, spec.scheme))
        self._attach("resume")

    def _was_restored_without_us(self, filesystem: Any) -> None:
        """By `tune.Tuner.restore(path, storage_filesystem=...)`, with one of the user's own."""
        logger.warning("restoring through %s: results are not synced by tune_sync", filesystem)
        others = [c for c in self.callbacks or () if not isinstance(c, OurCallback)]
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
        return self.storage_filesystem.handler  # type: ignore[no-any-return]

    def _set_place(self, place: Destination) -> None:
        object.__setattr__(self, "storage_path", place.path)
        object.__setattr__(self, "_scheme", place.scheme)

    def _place(self) -> Destination:
        return Destination(self.storage_path, self.__dict__.get("_scheme", ""))

    def _attach(self, on_existing: str) -> None:
        """A fresh filesystem and callback for the present name and storage path."""
        settings = self.sync_config, self._place(), self.name or "", on_existing
        filesystem = make_filesystem(*settings, keeps_all=keeps_all(self.checkpoint_config))
        ours = SyncCallback(filesystem, OwnSync.of(self.sync_config))
        ours.needs_state = is_space_left_out()
        callbacks = around(self.callbacks or (), ours)
        self.__dict__.update(storage_filesystem=filesystem, callbacks=callbacks)


class SyncCallback(OurCallback):
    """Tells tune_sync of Ray's driver-side events. Part of `RunConfig` and `run_config_kwargs`.

    Args:
        filesystem: The run's.
        own_sync: The user's own way to send results on; None without one.
    """

    own_sync: OwnSync | None = None  # also in pickles of versions that did not know it
    needs_state = False
    _idle_period = ""

    def __init__(self, filesystem: pafs.PyFileSystem, own_sync: OwnSync | None = None) -> None:
        self._filesystem = filesystem
        self.own_sync, self._on_existing = own_sync, filesystem.handler.on_existing
        self._idle_period = idle_period(filesystem.handler, own_sync)
        self._to_restore: frozenset[TrialNames] = frozenset()
        self._begin()

    def _begin(self) -> None:
        self._hearing = Hearing(self._filesystem)
        self._saves, self._written, self._clones = DroppedSaves(), WrittenRecords(), Clones()
        self._lost = LostCheckpoints(self._filesystem)
        self._best, self._trials = BestKept(self._handler.spec.options.keep_best), list[Any]()

    def __getstate__(self) -> dict[str, Any]:
        own = ("_hearing", "_saves", "_written", "_clones", "_lost", "_best", "_trials")
        return {**self.__dict__, **dict.fromkeys(own)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()
        self._handler.is_driver = True
        self._handler.on_existing = self._on_existing

    @property
    def _handler(self) -> SyncHandler:
        return self._filesystem.handler  # type: ignore[no-any-return]

    def setup(self, *args: Any, **info: Any) -> None:
        """Start the home agent, so that trials on other nodes find the way."""
        handler, run = self._handler, self._handler.start()
        self._to_restore = run.saved_trials
        self._clones.begin(run, ())
        try:
            if self.needs_state:
                check_saved(run)
            keep_copy(handler.site())
            name_experiment(handler)
            known_by = begin_home(handler)  # from here on the spec says where the home is
            if handler.on_existing == "resume":
                take_left_behind(handler)
            if self.own_sync is not None:
                self.own_sync.begin(handler)
        except BaseException:
            run.give_back()
            raise
        if handler.spec.options.stages:
            handler.files.learn(run)
            nodes = RayNodes(handler.spec, known_by, handler.connector)
            run.write_behind(nodes, make_backlog(handler.spec.options))
        run.begin()
        logger.info("results of all nodes are kept in %s", told_place(handler.spec))
        if self._idle_period:
            logger.info("%s", self._idle_period)

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Stop if another run took over; after a restore, bring Ray's record up to date."""
        run, self._trials = self._handler.start(), trials  # Ray's own list: it grows
        run.check_lease()
        run.note_refused()
        if self._to_restore:
            check_restored(run.where, self._to_restore, (trial.trial_id for trial in trials))
            self._to_restore = frozenset()
            self._handler.files.resume(trials[0].local_experiment_path)
            self._clones.begin(run, trials)
            adopt_published(run, trials, self._filesystem)
        self._lost.go_on_without(run, trials)
        self._best.begin(run, trials)
        self._written.refresh(run)
        self._keep_dropped_saves(trials)

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """What no trial goes on from any more may go, once state says so."""
        self._clones.step(self._handler.start())

    def get_state(self) -> None:
        """Ray makes a version of its state, and asks each callback for its own: there is none."""
        if (run := self._handler.run) is not None:
            self._handler.files.made(run, *(t.local_experiment_path for t in self._trials[:1]))

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Publish what the trial is about to load. Raises as `layout.check_trial`."""
        layout.check_trial(ray_records.directory_of(trial))
        self._saves.started(trial)
        run = self._handler.start()
        self._saves.register(trial, partial(self._registering, run, trials, trial))
        self._clones.look(run, trials, trial, self._publish_early, starts=True)
        self._lost.about_to_load(run, trials, trial)
        self._publish_early(trial)
        start_without_unpublished(run, trial, self._filesystem)

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The scheduler may have told trials to go on from other ones' checkpoints."""
        self._clones.reported(self._handler.start(), trials, trial, self._publish_early)

    def on_trial_save(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Ray has processed a save."""
        self._hearing.saved(trial)
        self._saves.processed(trial)
        self._written.refresh(self._handler.run)
        self._best.look(self._handler.run, trial)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Drop what it left in staging."""
        self._saves.failed(trial)
        self._discard(trials, trial)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Drop what the trial left in staging."""
        self.on_trial_recover(iteration, trials, trial)
        self._written.ended(self._handler.run, trial)
        self._handler.uploads.forget(ray_records.directory_of(trial))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Drop what the trial left in staging."""
        self._saves.stopped(trial)
        self._discard(trials, trial)
        self._written.ended(self._handler.run, trial)
        self._handler.uploads.forget(ray_records.directory_of(trial))
        self._best.look(self._handler.run, trial, has_ended=True)

    def place(self, trial: Any, checkpoint: Any) -> None:
        """See `Hearing.place`. Called before the user's own callbacks hear of a checkpoint."""
        self._hearing.place(trial, checkpoint)

    def on_checkpoint(
        self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any
    ) -> None:
        """Place it, if that is not done, and prepare for Ray to register it. Raises as `place`."""
        self.place(trial, checkpoint)
        if checkpoint.filesystem != self._filesystem:
            return
        number = ray_records.own_number(trial, checkpoint)
        run = self._handler.start()
        self._saves.register(trial, partial(self._registering, run, trials, trial))
        self._registering(run, trials, trial, checkpoint)
        if number is not None:
            ray_records.align(trial, number)

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """Publish what is left, and give the directory back. Raises as `end_run`."""
        handler, run = self._handler, self._handler.run
        if run is not None and not run.closed:
            keep_saves = partial(self._keep_dropped_saves, trials)
            go_on = partial(self._lost.go_on_without, run, trials)
            end_run(handler, run, keep_saves, partial(self._written.refresh, run), go_on)

    def _publish_early(self, trial: Any) -> None:
        """Publish the checkpoint that a trial will load, though Ray did not register it.

        Population Based Training clones a checkpoint as soon as it is saved. Ray registers it
        later, or never, if the trial that saved it is paused meanwhile.
        """
        result, checkpoint = ray_records.current(trial), trial.checkpoint
        if checkpoint is None or checkpoint.filesystem != self._filesystem:
            return
        metrics = plain_metrics(result.metrics or {}) if result else None
        try:
            self._handler.publish_early(checkpoint.path, metrics)
        except (TuneSyncError, OSError) as error:  # that trial fails then, not the run
            logger.warning("cannot publish %s, which %s loads: %s", checkpoint.path, trial, error)

    def _publish_clones(self, trials: list[Any], trial: Any) -> None:
        """Publish checkpoints of a trial that others are about to load."""
        for clone in clones_of(trial, trials, self._handler.experiment_root):
            self._publish_early(clone)

    def _registering(self, run: Run, trials: list[Any], trial: Any, checkpoint: Any) -> None:
        """Older ones of the trial that wait for their turn go, but for what others load."""
        if run.behind is not None and run.behind.edits_state:
            self._publish_clones(trials, trial)
            self._written.registering(run, trial, checkpoint)

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
        if number in kept or (is_late and (self._best.keep_count or ray_records.keeps_few(trial))):
            return
        self._hearing.publish(result.checkpoint, result.metrics or {})
        if not is_late:
            self._saves.keep(trial, result)

    def _discard(self, trials: list[Any], trial: Any) -> None:
        run, directory = self._handler.run, ray_records.directory_of(trial)
        if run is None or not directory or self._saves.waits_for(trial):
            return
        self._publish_clones(trials, trial)
        run.discard_staged(directory)
        self._handler.uploads.give_up(directory)
        ray_records.reserve(trial, layout.checkpoint_number(run.latest(directory)))
