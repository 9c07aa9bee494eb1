"""Keeps the best checkpoints of a whole experiment, beside what Ray keeps of each trial.

`SyncConfig(keep_best=...)`. Ray's record of a trial is changed as Ray changes it itself for
`num_to_keep`, and the deletes go the same way. For the thread of Ray's control loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tune_sync.config import SyncConfig
from tune_sync.errors import ConfigError
from tune_sync.restoring import ray_records
from tune_sync.run import Run

_NEEDS_SCORE = (
    "SyncConfig(keep_best={}): nothing says which checkpoints are the best; give the run a "
    'CheckpointConfig(checkpoint_score_attribute="...")'
)


@dataclass(frozen=True, order=True, slots=True)
class Scored:
    """A checkpoint that Ray keeps. The best is the greatest; of equals, the one of more steps.

    Attributes:
        score: See `ray_records.score`.
        number: Of the checkpoint.
        path: Of the checkpoint.
        trial_id: Ray's id of its trial.
        is_needed: Its trial has not ended, and would go on from it, or has none that is newer.
    """

    score: tuple[bool, float]
    number: int
    path: str
    trial_id: str
    is_needed: bool


def keeps_all(checkpoint_config: Any) -> bool:
    """Whether Ray deletes no checkpoints of a run."""
    return getattr(checkpoint_config, "num_to_keep", None) is None


def check_score(config: SyncConfig, checkpoint_config: Any) -> None:
    """Raise ConfigError if nothing says what is best."""
    name = getattr(checkpoint_config, "checkpoint_score_attribute", None)
    if config.keep_best and name is None:
        raise ConfigError(_NEEDS_SCORE.format(config.keep_best))


def too_many(found: Iterable[Scored], keep_count: int) -> Mapping[str, list[Scored]]:
    """Trial id -> those of its checkpoints that are to go: not among the best, and not needed."""
    gone: dict[str, list[Scored]] = defaultdict(list)
    for scored in sorted(found, reverse=True)[keep_count:]:
        if not scored.is_needed:
            gone[scored.trial_id].append(scored)
    return gone


class BestKept:
    """What one run keeps. Costs as much, at each checkpoint, as there are checkpoints kept.

    Args:
        keep_count: See `SyncConfig.keep_best`; 0: it does nothing.
    """

    def __init__(self, keep_count: int) -> None:
        self.keep_count = keep_count
        self._trials: dict[str, Any] = {}  # by id
        self._found: dict[str, list[Scored]] = {}  # by trial id, where there is anything
        self._ended: set[str] = set()
        self._has_begun = False

    def begin(self, run: Run, trials: Collection[Any]) -> None:
        """Before the first step of a run: take in what a restore has brought.

        Raises:
            ConfigError: Nothing says what is best.
        """
        if not self.keep_count or self._has_begun or not trials:
            return
        self._has_begun = True
        for trial in trials:
            if not ray_records.has_score(trial):
                raise ConfigError(_NEEDS_SCORE.format(self.keep_count))
            if ray_records.has_terminated(trial):
                self._ended.add(trial.trial_id)
            self._note(trial)
        self._trim(run)

    def look(self, run: Run | None, trial: Any, *, has_ended: bool = False) -> None:
        """A trial has registered a checkpoint, or has ended: have go what is too many now."""
        if not self.keep_count or run is None:
            return
        if has_ended:
            self._ended.add(trial.trial_id)
        self._note(trial)
        self._trim(run)

    def _note(self, trial: Any) -> None:
        now, has_ended = ray_records.current(trial), trial.trial_id in self._ended
        kept = ray_records.kept(trial)
        next_path = now.checkpoint.path if now and now.checkpoint else ""
        newest = max(kept, default=-1)  # of a clone, what it would go on from is another trial's
        self._trials[trial.trial_id] = trial
        self._found[trial.trial_id] = [
            Scored(
                ray_records.score(trial, result), number, result.checkpoint.path, trial.trial_id,
                not has_ended and (number == newest or result.checkpoint.path == next_path),
            )
            for number, result in kept.items()
        ]  # fmt: skip
        if has_ended and not kept:
            del self._trials[trial.trial_id], self._found[trial.trial_id]

    def _trim(self, run: Run) -> None:
        if sum(map(len, self._found.values())) <= self.keep_count:
            return
        found = (scored for of_trial in self._found.values() for scored in of_trial)
        for trial_id, scored in too_many(found, self.keep_count).items():
            self._let_go(run, self._trials[trial_id], {s.path for s in scored})

    def _let_go(self, run: Run, trial: Any, paths: set[str]) -> None:
        ray_records.drop(trial, paths)
        run.corrections.put(trial.trial_id, ray_records.correction(trial, paths))
        for path in sorted(paths):
            key = ray_records.key_at(run, path)
            run.let_go(key, has_ended=trial.trial_id in self._ended)
        self._note(trial)
