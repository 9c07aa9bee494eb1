"""Trials that go on from checkpoints of others, as Population Based Training has them do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from typing import Any

from tune_sync import layout
from tune_sync.restoring import ray_records
from tune_sync.run import Run

_PAUSED = "PAUSED"

Publish = Callable[[Any], None]

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


def _not_at_all(trial: Any) -> None: ...


def clones_of(trial: Any, trials: Collection[Any], root: str) -> Iterator[Any]:
    """Trials that are to load a checkpoint of another one.

    Args:
        trial: The other one.
        trials: All of them.
        root: The experiment's.
    """
    own = f"{root}/{ray_records.directory_of(trial)}/"
    for other in trials:
        if other is not trial and other.checkpoint and other.checkpoint.path.startswith(own):
            yield other


class Clones:
    """One run's trials that were told to go on from another one's checkpoint.

    Ray deletes a trial's old checkpoints whoever has cloned them. Its state names one as long as
    the clone has none of its own.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Any, Any]] = {}
        self._reported: dict[str, Any] = {}  # by trial id: since the last step
        self._paused: dict[str, Any] = {}  # by trial id

    def begin(self, run: Run, trials: Collection[Any]) -> None:
        """Before anything is deleted. Restored trials may be clones already."""
        self._seen = {
            t.trial_id: (t, ray_records.current(t)) for t in trials if ray_records.is_clone(t)
        }
        run.in_use = lambda: self._in_use(run)

    def step(self, run: Run) -> None:
        """A step of Ray's control loop is over: trials that reported in it may be paused now."""
        run.retire_unused()
        self._paused |= {i: t for i, t in self._reported.items() if t.status == _PAUSED}
        self._reported.clear()

    def reported(
        self, run: Run, trials: Collection[Any], trial: Any, publish_early: Publish = _not_at_all
    ) -> None:
        """A trial has reported. In its synchronous mode that may make clones of paused ones."""
        self._reported[trial.trial_id] = trial
        self._paused = {i: t for i, t in self._paused.items() if t.status == _PAUSED}
        for other in (trial, *self._paused.values()):
            self.look(run, trials, other, publish_early)

    def look(
        self, run: Run, trials: Collection[Any], trial: Any, publish_early: Publish = _not_at_all,
        *, starts: bool = False,
    ) -> None:  # fmt: skip
        """Have a clone go on from something that is there.

        Population Based Training remembers a checkpoint of each trial, and may hand it on after
        Ray has deleted it, where few are kept. Call it where Ray is about to mark the trial for its
        saved state.

        Args:
            run: The run.
            trials: All of Ray's.
            trial: One that may have become a clone, or is about to start.
            publish_early: Publishes what a trial will load, if that was reported by now.
            starts: The latter: it is looked at again.
        """
        now = ray_records.current(trial)
        if not ray_records.is_clone(trial):
            self._seen.pop(trial.trial_id, None)
            return
        if not starts and now is self._seen.get(trial.trial_id, (trial, None))[1]:
            return
        self._seen[trial.trial_id] = trial, now  # in use, while it is looked for
        is_there = _is_there(run, trials, now)
        if not is_there:  # it may have been saved just now, and not be registered yet
            publish_early(trial)
            is_there = _is_there(run, trials, now)
        instead = now if is_there else _instead(run, trials, trial, now)
        if instead is not now:
            ray_records.go_on_from(trial, instead)
            logger.warning(
                "%s is to go on from %s, which was deleted (num_to_keep): it goes on from %s",
                trial, ray_records.key_of(run, now),
                ray_records.key_of(run, instead) if instead else "its beginning",
            )  # fmt: skip
        self._seen[trial.trial_id] = trial, instead

    def _in_use(self, run: Run) -> set[str]:
        clones = [trial for trial, _ in self._seen.values() if ray_records.is_clone(trial)]
        return {ray_records.key_of(run, ray_records.current(trial)) for trial in clones}


def _is_there(run: Run, trials: Collection[Any], result: Any) -> bool:
    key = ray_records.key_of(run, result)
    if run.spare(key):
        run.let_go(key)  # again, when nobody goes on from it
        return True
    donor = _donor(run, trials, result)
    if donor is not None and result.checkpoint.path in ray_records.paths_of(donor):
        return True
    return not key or run.is_there(key)


def _instead(run: Run, trials: Collection[Any], trial: Any, result: Any) -> Any:
    """The donor's newest, or its own."""
    for other in (_donor(run, trials, result), trial):
        kept = ray_records.kept(other) if other is not None else {}
        if kept:
            return kept[max(kept)]
    return None


def _donor(run: Run, trials: Collection[Any], result: Any) -> Any:
    directory = layout.parent(ray_records.key_of(run, result))
    return next((t for t in trials if ray_records.directory_of(t) == directory), None)
