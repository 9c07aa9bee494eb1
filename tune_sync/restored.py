"""Brings Ray's record of restored trials up to what is published. See `adopt` for what and why.

At the first step after a restore, before any trial is started.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow.fs as pafs

from tune_sync import layout, ray_records
from tune_sync.adopt import Plan, Record, find_directory, plan
from tune_sync.checkpoint import Checkpoint
from tune_sync.recorded import is_whole, recorded_numbers
from tune_sync.run import Run

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


def take_over(run: Run, trials: Collection[Any], filesystem: pafs.PyFileSystem) -> None:
    """Register with Ray what it does not know of, and delete what it had deleted.

    Args:
        run: The restored run; `recover` has gone over its directory.
        trials: Ray's, none of them started yet.
        filesystem: The run's.

    Raises:
        DamagedError: A manifest cannot be read.
    """
    found = Restored(run, filesystem)
    found.find_directories(trials)
    in_use = found.in_use(trials)
    for trial in trials:
        directory = ray_records.directory_of(trial)
        if directory:
            found.act(trial, plan(found.record(trial), found.numbers[directory], in_use[directory]))


class Restored:
    """A restored experiment directory, beside Ray's record of it."""

    def __init__(self, run: Run, filesystem: pafs.PyFileSystem) -> None:
        self._run = run
        self._filesystem = filesystem
        self.numbers: Mapping[str, set[int]] = defaultdict(set, recorded_numbers(run.home.store))

    def find_directories(self, trials: Collection[Any]) -> None:
        """Give trials that began after the state was saved the directories that they made."""
        free = self.numbers.keys() - {ray_records.directory_of(trial) for trial in trials}
        for trial in trials:
            begun = ray_records.directory_of(trial) in self.numbers or trial.checkpoint
            directory = "" if begun or not free else find_directory(trial.trial_id, free)
            if directory and not trial.is_finished():
                ray_records.set_directory(trial, directory)

    def in_use(self, trials: Collection[Any]) -> Mapping[str, set[int]]:
        """Directory -> the numbers in it that any trial would go on from."""
        used: dict[str, set[int]] = defaultdict(set)
        for trial in trials:
            key = self._current_key(trial)
            number = layout.checkpoint_number(key) if key else None
            if number is not None:
                used[layout.parent(key)].add(number)
        return used

    def record(self, trial: Any) -> Record:
        """What Ray's state says of a trial."""
        kept = ray_records.kept(trial)
        return Record(
            index=ray_records.index_of(trial),
            kept=frozenset(n for n in kept if self._is_there(self._key(trial, n))),
            is_lost=self._is_lost(trial),
            keeps_few=ray_records.keeps_few(trial),
            is_finished=trial.is_finished(),
        )

    def act(self, trial: Any, todo: Plan) -> None:
        """Do what was planned for a trial."""
        if not trial.is_finished():
            self._adopt(trial, todo)
        for number in todo.retire:
            self._run.retire_later(self._key(trial, number))

    def _adopt(self, trial: Any, todo: Plan) -> None:
        known = ray_records.kept(trial)
        results = [known.get(n) or self._result(trial, n) for n in todo.adopt]
        whole = [result for result in results if result is not None]
        published = self.numbers[ray_records.directory_of(trial)]
        ray_records.reserve(trial, max(published, default=-1))
        if not whole:
            return
        newest = whole[-1].checkpoint.path
        if todo.is_anew:
            gone = ray_records.current(trial).checkpoint.path
            logger.warning("%s: checkpoint %s is gone; going on from %s", trial, gone, newest)
            ray_records.forget(trial)
        else:
            logger.info("%s: %s is newer than the saved state", trial, newest)
        self._run.note_latest(layout.below(str(self._run.root), newest) or "")
        for result in whole:
            ray_records.register(trial, result)

    def _result(self, trial: Any, number: int) -> Any:
        """What is published under a number, as Ray keeps it; None if it is not whole."""
        key = self._key(trial, number)
        manifest = self._run.home.committer.manifest(key)
        if manifest is None or not is_whole(self._run.home.store, manifest):
            logger.warning("%s is not whole any more: files are missing", key)
            return None
        checkpoint = Checkpoint(f"{self._run.root}/{key}", self._filesystem)
        metrics = manifest.metrics
        if metrics is None:  # written by a tune_sync that did not keep them
            metrics = ray_records.last_metrics(trial)
        return ray_records.result_of(trial, checkpoint, metrics)

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
        if self._run.home.info(key) is None:
            return False
        manifest = self._run.home.committer.manifest(key)
        return manifest is None or is_whole(self._run.home.store, manifest)

    def _current_key(self, trial: Any) -> str:
        current = ray_records.current(trial)
        path = current.checkpoint.path if current and current.checkpoint else ""
        return layout.below(str(self._run.root), path) or ""

    def _key(self, trial: Any, number: int) -> str:
        return f"{ray_records.directory_of(trial)}/{layout.checkpoint_name(number)}"
