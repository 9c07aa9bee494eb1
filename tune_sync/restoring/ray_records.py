"""What Ray's `Trial` knows of its checkpoints: read, and changed as Ray itself would change it.

Relies on how Ray keeps that record; docs/design/ray-adapter.md says on what.
"""

from __future__ import annotations

from typing import Any

from ray.train._internal.session import _TrainingResult

from tune_sync import layout


def directory_of(trial: Any) -> str:
    """A trial's directory, relative to the experiment's; "" if it has none yet."""
    return trial.relative_logdir or ""


def set_directory(trial: Any, directory: str) -> None:
    """Give a trial that has not begun a directory that is there already."""
    trial.relative_logdir = trial.storage.trial_dir_name = directory
    trial.init_local_path()


def own_number(trial: Any, checkpoint: Any) -> int | None:
    """The number of a checkpoint, if it lies in the trial's directory."""
    inside = layout.below(trial.path, checkpoint.path) if directory_of(trial) else None
    return layout.checkpoint_number(inside) if inside and "/" not in inside else None


def current(trial: Any) -> Any:
    """The result whose checkpoint the trial would go on from, or None. May be another trial's."""
    return trial.run_metadata.checkpoint_manager.latest_checkpoint_result


def results(trial: Any) -> list[Any]:
    """All results with a checkpoint that Ray keeps of the trial; may hold one twice."""
    manager = trial.run_metadata.checkpoint_manager
    found = [*manager.best_checkpoint_results, manager.latest_checkpoint_result]
    return [result for result in found if result and result.checkpoint]


def kept(trial: Any) -> dict[int, Any]:
    """Number -> result, of the trial's own checkpoints that Ray keeps."""
    numbered = ((own_number(trial, result.checkpoint), result) for result in results(trial))
    return {number: result for number, result in numbered if number is not None}


def is_clone(trial: Any) -> bool:
    """Whether the trial would go on from another trial's checkpoint."""
    now = current(trial)
    return bool(now and now.checkpoint) and own_number(trial, now.checkpoint) is None


def given_names(trial: Any) -> dict[str, str]:
    """What the user's functions named the trial, as `adopt.find_directory` takes it."""
    custom, name = trial.custom_dirname or "", trial.custom_trial_name or ""
    return {"custom": custom, "beginning": f"{name}_{trial.experiment_tag}_" if name else ""}


def keeps_few(trial: Any) -> bool:
    """Whether Ray deletes old checkpoints of the trial."""
    return trial.run_metadata.checkpoint_manager.checkpoint_config.num_to_keep is not None


def last_metrics(trial: Any) -> dict[str, Any]:
    """The trial's last result."""
    return dict(trial.run_metadata.last_result or {})


def result_of(trial: Any, checkpoint: Any, metrics: dict[str, Any]) -> Any:
    """A result as Ray keeps it; Ray's own holds the trial's `config` too."""
    return _TrainingResult(checkpoint=checkpoint, metrics={**metrics, "config": trial.config})


def index_of(trial: Any) -> int:
    """The highest number that Ray says was used; the trial's next save gets the one after it."""
    return int(trial.storage.current_checkpoint_index)


def reserve(trial: Any, number: int) -> None:
    """See to it that saves after the trial's next start get higher numbers than this one."""
    if number > index_of(trial):
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
        trial.run_metadata.checkpoint_manager._latest_checkpoint_result = before


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
    manager._latest_checkpoint_result = now
    trial.invalidate_json_state()


def _iteration(result: Any) -> int:
    return int((result.metrics or {}).get("training_iteration", 0))
