"""Brings Ray's record of restored trials up to what is published. See `adopt` for what and why.

At the first step after a restore, before any trial is started.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from tune_sync import layout
from tune_sync.checkpoint import Checkpoint
from tune_sync.errors import ConfigError, DamagedError
from tune_sync.homes.recorded import is_whole, recorded_numbers
from tune_sync.manifest import Manifest
from tune_sync.restoring import ray_records
from tune_sync.restoring.adopt import Plan, Record, find_directory, plan
from tune_sync.restoring.result_rows import Known, put_back
from tune_sync.run import Run
from tune_sync.same import is_below

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


def adopt_published(run: Run, trials: Collection[Any], filesystem: pafs.PyFileSystem) -> None:
    """Register with Ray what it does not know of, and delete what it had deleted.

    Args:
        run: The restored run; `recover` has gone over its directory, and clones are known to it.
        trials: Ray's, none of them started yet.
        filesystem: The run's.
    """
    found = Restored(run, filesystem)
    found.point_here(trials)
    found.find_directories(trials)
    found.refuse_links(trials)
    for trial in trials:
        directory = ray_records.directory_of(trial)
        if directory:
            found.act(trial, plan(found.record(trial), found.numbers[directory]))
    put_back(run.home, found.known)


class Restored:
    """A restored experiment directory, beside Ray's record of it."""

    def __init__(self, run: Run, filesystem: pafs.PyFileSystem) -> None:
        self._run = run
        self._filesystem = filesystem
        self._damaged: set[str] = set()
        self._keeps_best = bool(filesystem.handler.spec.options.keep_best)
        self._there = run.home.snapshot()
        self.known: dict[str, Known] = {}  # see `put_back`
        self._untold = set[str]()  # what was reported with these is not known
        self.numbers: Mapping[str, set[int]] = defaultdict(set, recorded_numbers(self._there))

    def point_here(self, trials: Collection[Any]) -> None:
        """Correct what Ray leaves: where artifacts go, and after a move the paths of clones."""
        for trial in trials:
            ray_records.sync_through(trial, self._filesystem)
        for result in (r for trial in trials for r in ray_records.results(trial)):
            inside = "/".join(result.checkpoint.path.split("/")[-2:])
            here = f"{self._run.root}/{inside}"
            if not self._key_of(result) and self._there.info(inside) is not None:
                result.checkpoint = Checkpoint(here, self._filesystem)

    def find_directories(self, trials: Collection[Any]) -> None:
        """Give trials that began after the state was saved the directories that they made.

        Ray restarts a trial as another one. That gets a directory of its own, whatever its name.
        """
        free = self.numbers.keys() - {ray_records.directory_of(trial) for trial in trials}
        saved = {names.trial_id: names.directory for names in self._run.saved_trials}
        for trial in trials:
            if trial.is_finished():
                continue
            names, has_none = ray_records.names_of(trial), not ray_records.directory_of(trial)
            if trial.trial_id not in saved and has_none:
                taken = {*self.numbers, *saved.values()}
                ray_records.make_directory(trial, filter(names.has, taken))
            # Not by what it has now: to a trial that had none Ray gives a new one as it restores.
            is_known = trial.checkpoint or saved.get(trial.trial_id, "a new trial")
            if not is_known and (directory := find_directory(names, free)):
                ray_records.set_directory(trial, directory)

    def refuse_links(self, trials: Collection[Any]) -> None:
        """Raise ConfigError if a trial that goes on would write outside of the experiment."""
        root = Path(self._run.root)
        names = (ray_records.directory_of(t) for t in trials if not t.is_finished())
        for path in (root / name for name in names if name):
            if path.is_symlink() and not is_below(path.resolve(), root.resolve()):
                raise ConfigError(
                    f"{path} is a link to {path.resolve()}, outside of {root}: a trial that goes "
                    "on writes there; move that directory back, or the whole experiment, and "
                    "restore"
                )

    def record(self, trial: Any) -> Record:
        """What Ray's state says of a trial."""
        kept = ray_records.kept(trial)
        return Record(
            index=ray_records.index_of(trial),
            kept=frozenset(n for n in kept if self._is_there(self._key(trial, n))),
            is_lost=self._is_lost(trial),
            keeps_few=ray_records.keeps_few(trial) or self._keeps_best,
            is_trimmed=self._keeps_best and ray_records.has_terminated(trial),
            is_finished=trial.is_finished(),
            is_clone=ray_records.is_clone(trial),
        )

    def act(self, trial: Any, todo: Plan) -> None:
        """Do what was planned for a trial."""
        if not trial.is_finished():
            self._adopt(trial, todo)
        for key in (self._key(trial, number) for number in todo.retire):
            # What is damaged, or is to be gone on from and lacks files, may still be put right.
            if key not in self._damaged and key != self._current_key(trial):
                self._run.let_go(key)

    def _adopt(self, trial: Any, todo: Plan) -> None:
        known = {
            n: r for n, r in ray_records.kept(trial).items() if self._is_there(self._key_of(r))
        }
        results = [known.get(n) or self._result(trial, n) for n in todo.adopt]
        whole = [result for result in results if result is not None]
        directory = ray_records.directory_of(trial)
        ray_records.reserve(trial, max(self._visible(directory), default=-1))
        if not whole:
            return
        newest = whole[-1].checkpoint.path
        if todo.is_anew:
            gone = ray_records.current(trial).checkpoint.path
            logger.warning("%s: checkpoint %s is gone; going on from %s", trial, gone, newest)
            ray_records.forget(trial)
        else:
            logger.info("%s: %s is newer than the saved state", trial, newest)
        self._run.note_latest(ray_records.key_at(self._run, newest))
        told = (r for r in whole if self._key_of(r) not in self._untold)
        rows = [ray_records.row_of(trial, result) for result in told]
        self.known[directory] = Known(rows, Path(trial.local_path))
        for result in whole:
            ray_records.register(trial, result)

    def _visible(self, directory: str) -> set[int]:
        """Numbers of all checkpoints that are there: none of them is written over."""
        found = set()
        for entry in self._there.list(directory):
            number = layout.checkpoint_number(entry.key)
            if number is not None:
                found.add(number)
        for number in sorted(found - self.numbers[directory]):
            key = f"{directory}/{layout.checkpoint_name(number)}"
            logger.warning("%s has no manifest: it does not count, and stays as it is", key)
        return found

    def _manifest(self, key: str) -> Manifest | None:
        try:
            return self._there.manifest(key)
        except DamagedError as error:
            if key not in self._damaged:
                self._damaged.add(key)
                logger.warning(
                    "%s: %s; %s does not count until a whole copy of that file is put back",
                    self._run.root, error, key,
                )  # fmt: skip
            return None

    def _result(self, trial: Any, number: int) -> Any:
        """What is published under a number, as Ray keeps it; None if it is not whole."""
        key = self._key(trial, number)
        manifest = self._manifest(key)
        if manifest is None:
            return None
        if not is_whole(self._there, manifest):
            logger.warning("%s is not whole any more: files are missing", key)
            return None
        checkpoint = Checkpoint(f"{self._run.root}/{key}", self._filesystem)
        if not ray_records.has_counts(manifest.metrics):
            self._untold.add(key)
        if manifest.metrics is None:
            logger.warning("%s: nobody knows what was reported with it; it counts without", key)
        return ray_records.result_of(trial, checkpoint, manifest.metrics)

    def _is_lost(self, trial: Any) -> bool:
        current = ray_records.current(trial)
        if current is None or not current.checkpoint:
            return False
        if current.checkpoint.filesystem != self._filesystem:
            return False
        key = self._current_key(trial)
        return not (key and self._is_there(key))

    def _is_there(self, key: str) -> bool:
        """Whether a checkpoint is there, and whole as far as its manifest tells."""
        if self._there.info(key) is None:
            return False
        manifest = self._manifest(key)
        if manifest is None:  # in a bucket nothing else tells that it is whole, nor lets it be read
            return not (self._run.home.in_place and key in self._damaged)
        return is_whole(self._there, manifest)

    def _current_key(self, trial: Any) -> str:
        current = ray_records.current(trial)
        return self._key_of(current) if current and current.checkpoint else ""

    def _key_of(self, result: Any) -> str:
        return ray_records.key_of(self._run, result)

    def _key(self, trial: Any, number: int) -> str:
        return f"{ray_records.directory_of(trial)}/{layout.checkpoint_name(number)}"
