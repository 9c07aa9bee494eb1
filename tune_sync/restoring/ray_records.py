"""What Ray's `Trial` knows of its checkpoints: read, and changed as Ray itself would change it.

Relies on how Ray keeps that record; docs/design/ray-adapter.md says on what.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from numbers import Real
from pathlib import Path
from typing import Any

from ray.train._internal.session import _TrainingResult

from tune_sync import layout
from tune_sync.homes.saved_state import TrialNames, beginning_of
from tune_sync.homes.state_records import Correction
from tune_sync.run import Run

# In results of Ray.
_CHECKPOINT_NAME, _ITERATION = "checkpoint_dir_name", "training_iteration"
_COUNTS = (_ITERATION, "time_total_s", "timesteps_total", "episodes_total")


def directory_of(trial: Any) -> str:
    """A trial's directory, relative to the experiment's; "" if it has none yet."""
    return trial.relative_logdir or ""


def set_directory(trial: Any, directory: str) -> None:
    """Give a trial that has not begun a directory that is there already."""
    trial.relative_logdir = trial.storage.trial_dir_name = directory
    trial.init_local_path()


def make_directory(trial: Any, taken: Iterable[str]) -> None:
    """Give a trial that has not begun a new directory, by its name, that is none of these."""
    for directory in taken:  # Ray looks on its own disk for what is there
        Path(trial.local_experiment_path, directory).mkdir(parents=True, exist_ok=True)
    trial.init_local_path()


def sync_through(trial: Any, filesystem: Any) -> None:
    """Send a restored trial's artifacts by this run; Ray leaves its syncer that of the old one."""
    trial.storage.syncer.storage_filesystem = filesystem


def own_number(trial: Any, checkpoint: Any) -> int | None:
    """The number of a checkpoint, if it lies in the trial's directory."""
    inside = layout.below(trial.path, checkpoint.path) if directory_of(trial) else None
    return layout.checkpoint_number(inside) if inside and "/" not in inside else None


def current(trial: Any) -> Any:
    """The result whose checkpoint the trial would go on from, or None. May be another trial's."""
    return trial.run_metadata.checkpoint_manager.latest_checkpoint_result


def results(trial: Any) -> list[Any]:
    """All results with a checkpoint that Ray keeps of the trial; may hold one twice."""
    return _results(trial.run_metadata)


def kept(trial: Any) -> dict[int, Any]:
    """Number -> result, of the trial's own checkpoints that Ray keeps."""
    numbered = ((own_number(trial, result.checkpoint), result) for result in results(trial))
    return {number: result for number, result in numbered if number is not None}


def is_clone(trial: Any) -> bool:
    """Whether the trial would go on from another trial's checkpoint."""
    now = current(trial)
    return bool(now and now.checkpoint) and own_number(trial, now.checkpoint) is None


def names_of(trial: Any) -> TrialNames:
    """What tells the directory of a trial that has none yet."""
    custom, name = trial.custom_dirname or "", trial.custom_trial_name or ""
    beginning = beginning_of(name, trial.experiment_tag or "")
    return TrialNames(trial.trial_id, custom=custom, beginning=beginning)


def keeps_few(trial: Any) -> bool:
    """Whether Ray deletes old checkpoints of the trial."""
    return trial.run_metadata.checkpoint_manager.checkpoint_config.num_to_keep is not None


def paths_of(trial: Any) -> frozenset[str]:
    """Where these checkpoints are."""
    return frozenset(result.checkpoint.path for result in results(trial))


def key_of(run: Run, result: Any) -> str:
    """The key of a result's checkpoint in the run's experiment; "" if it is elsewhere."""
    return key_at(run, result.checkpoint.path)


def key_at(run: Run, path: str) -> str:
    """The key of what is at `path`, as Ray names it, in the run's experiment; "": elsewhere."""
    return layout.below(str(run.root), path) or ""


def has_terminated(trial: Any) -> bool:
    """Whether the trial has come to its end; one with an error may be tried again by a restore."""
    return bool(trial.status == "TERMINATED")


def last_metrics(trial: Any) -> dict[str, Any]:
    """The trial's last result."""
    return dict(trial.run_metadata.last_result or {})


def counts_at(trial: Any, number: int) -> dict[str, Any]:
    """What Ray counts on from, at a checkpoint of which only its number is known.

    A report makes one checkpoint at most. So what was reported after the trial's last result has at
    least these counts, and what was reported before it has at most these.
    """
    last = last_metrics(trial)
    named = layout.checkpoint_number(str(last.get(_CHECKPOINT_NAME) or ""))
    later_count = number - (index_of(trial) if named is None else named)
    names = _COUNTS if later_count >= 0 else _COUNTS[:1]
    counts = {name: last[name] for name in names if last.get(name) is not None}
    return {**counts, _ITERATION: max(0, counts.get(_ITERATION, 0) + later_count)}


def result_of(trial: Any, checkpoint: Any, metrics: dict[str, Any] | None) -> Any:
    """A result as Ray keeps it; Ray's own holds the trial's `config` too.

    Args:
        trial: The trial.
        checkpoint: One of its own.
        metrics: What is known to have been reported with it; None: nothing is.
    """
    known = dict(metrics or {})
    if _ITERATION not in known:  # a training function does not know its trial's counts
        known |= counts_at(trial, own_number(trial, checkpoint) or 0)
    return _TrainingResult(checkpoint=checkpoint, metrics={**known, "config": trial.config})


def has_counts(metrics: dict[str, Any] | None) -> bool:
    """Whether metrics are those of Ray's driver: a training function does not know its counts."""
    return metrics is not None and _ITERATION in metrics


def row_of(trial: Any, result: Any) -> dict[str, Any]:
    """The row that Ray's loggers write of a result."""
    name = result.checkpoint.path.rpartition("/")[2]
    return {"trial_id": trial.trial_id, _CHECKPOINT_NAME: name, **result.metrics}


def index_of(trial: Any) -> int:
    """The highest number that Ray says was used; the trial's next save gets the one after it."""
    return int(trial.storage.current_checkpoint_index)


def reserve(trial: Any, number: int | None) -> None:
    """See to it that saves after the trial's next start get higher numbers than this, if any."""
    if number is not None and number > index_of(trial):
        trial.storage.current_checkpoint_index = number
        trial.invalidate_json_state()


def align(trial: Any, number: int) -> None:
    """Prepare for Ray to register a checkpoint: it adds one, and should come to this number.

    Ray counts what it registers. What it refused or dropped was counted in the trial, not here.
    """
    trial.storage.current_checkpoint_index = max(number, index_of(trial)) - 1


def register(trial: Any, result: Any) -> None:
    """Register a checkpoint of the trial, as Ray does with one that was saved now.

    Ray then goes on from it, and deletes what is too many. A trial that Population Based Training
    told to go on from another one's checkpoint still does, unless this one is further on.
    """
    number = own_number(trial, result.checkpoint)
    before, was_clone = current(trial), is_clone(trial)
    if number is not None:
        align(trial, number)
    trial.on_checkpoint(result)
    if was_clone and _iteration(result) <= _iteration(before):
        go_on_from(trial, before)


def forget(trial: Any) -> None:
    """Empty Ray's record of the trial's checkpoints."""
    metadata = trial.run_metadata
    manager = metadata.checkpoint_manager
    metadata.checkpoint_manager = type(manager)(checkpoint_config=manager.checkpoint_config)


def keep_only(trial: Any, kept: list[Any], now: Any) -> None:
    """Make Ray's record anew: of these results, oldest first, and the one to go on from."""
    forget(trial)
    manager = trial.run_metadata.checkpoint_manager
    for result in kept:
        manager.register_checkpoint(result)
    go_on_from(trial, now)


def go_on_from(trial: Any, result: Any) -> None:
    """Have a trial go on from a result, its own or another trial's; None: from its beginning."""
    trial.run_metadata.checkpoint_manager._latest_checkpoint_result = result
    trial.invalidate_json_state()
    trial.run_metadata.invalidate_cache()


def forget_some(trial: Any, gone: Collection[str]) -> None:
    """Take checkpoints out of Ray's record, by path. Ray is about to register another one."""
    manager = trial.run_metadata.checkpoint_manager
    manager._checkpoint_results = [r for r in listed(trial) if r.checkpoint.path not in gone]


def put_first(trial: Any, result: Any) -> None:
    """Have Ray keep a result that it let go of, as the first that it lets go of again."""
    manager = trial.run_metadata.checkpoint_manager
    manager._checkpoint_results = [result, *listed(trial)]


def newest_left(trial: Any, gone: Collection[str]) -> Any:
    """The newest of a trial's own results that is none of these, by path; or None."""
    own = kept(trial).values()
    return _newest(trial, [r for r in own if r.checkpoint.path not in gone])


def drop(trial: Any, gone: Collection[str]) -> None:
    """Take checkpoints out of Ray's record, by path, at any time.

    If the latest is one of them, the newest of the trial's own that is left takes its place.
    """
    forget_some(trial, gone)
    now = current(trial)
    if now is not None and now.checkpoint and now.checkpoint.path in gone:
        go_on_from(trial, _newest(trial, listed(trial)))
    trial.invalidate_json_state()
    trial.run_metadata.invalidate_cache()


def score(trial: Any, result: Any) -> tuple[bool, float]:
    """How good a checkpoint is, as `CheckpointConfig` says; more is better. The worst: unknown."""
    config = trial.run_metadata.checkpoint_manager.checkpoint_config
    name, found = config.checkpoint_score_attribute or "", dict(result.metrics or {})
    value = found[name] if name in found else _inside(found, name.split("/"))
    if not isinstance(value, Real) or value != value:
        return (False, 0.0)
    return (True, float(value) * (1 if config.checkpoint_score_order == "max" else -1))


def _inside(found: Any, names: Sequence[str]) -> Any:
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def has_score(trial: Any) -> bool:
    """Whether it is known what makes a checkpoint better than others."""
    config = trial.run_metadata.checkpoint_manager.checkpoint_config
    return config.checkpoint_score_attribute is not None


def listed(trial: Any) -> list[Any]:
    """All results that Ray counts for `num_to_keep`, the worst first."""
    return list(trial.run_metadata.checkpoint_manager._checkpoint_results)


def encoded(trial: Any, results: Sequence[Any], now: Any) -> Any:
    """Another record of a trial, as it stands in Ray's saved state; Ray's own stays as it is.

    Args:
        trial: The trial.
        results: What it keeps, the worst first.
        now: The one to go on from, or None.
    """
    metadata = type(trial.run_metadata)()
    metadata.checkpoint_manager = copy.copy(trial.run_metadata.checkpoint_manager)
    metadata.checkpoint_manager._checkpoint_results = list(results)
    metadata.checkpoint_manager._latest_checkpoint_result = now
    return json.loads(metadata.get_json_state())["checkpoint_manager"]


def correction(trial: Any, lost: Collection[str], instead: Any = None) -> Correction:
    """For states that Ray makes of what it noted of a trial before its record was changed.

    It notes it when the trial starts, reports or stops: of one that has ended, never again.

    Args:
        trial: The trial; its record is as it is to be.
        lost: Paths of checkpoints that are not in it any more.
        instead: A result from which it goes on if it was to go on from one of these; None: the
            newest of its own that is left.
    """
    metadata = type(trial.run_metadata)

    @lru_cache(maxsize=1)  # of a trial that has ended it is the same in each state
    def rewrite(noted: str, lost: frozenset[str], instead: Any) -> Any:
        manager = metadata.from_json_state(noted).checkpoint_manager
        now, found = manager.latest_checkpoint_result, manager._checkpoint_results
        names_now = bool(now and now.checkpoint and now.checkpoint.path in lost)
        left = [r for r in found if r.checkpoint.path not in lost]
        if not names_now and len(left) == len(found):
            return None
        if not names_now:
            return encoded(trial, left, now)
        if instead is None or instead.checkpoint.path in lost:
            return encoded(trial, left, _newest(trial, left))
        there = any(r.checkpoint.path == instead.checkpoint.path for r in left)
        return encoded(trial, left if there else [*left, instead], instead)

    return Correction(frozenset(lost), paths_of(trial), rewrite, instead)


def _newest(trial: Any, found: Sequence[Any]) -> Any:
    """The newest of a trial's own results, or None."""
    return max(found, key=lambda r: own_number(trial, r.checkpoint) or 0, default=None)


def _results(metadata: Any) -> list[Any]:
    manager = metadata.checkpoint_manager
    found = [*manager.best_checkpoint_results, manager.latest_checkpoint_result]
    return [result for result in found if result and result.checkpoint]


def _iteration(result: Any) -> int:
    return int((result.metrics or {}).get(_ITERATION, 0))
