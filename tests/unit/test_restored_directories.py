"""Which directory a restored trial has: its own, whatever Ray gives it, and no other one's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import tune
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial

from tests.unit.restored_run import MINE, OTHER, Experiment, Storage
from tune_sync.homes.saved_state import TrialNames
from tune_sync.layout import checkpoint_name
from tune_sync.restoring import ray_records


@pytest.fixture
def experiment(tmp_path: Path) -> Iterator[Experiment]:
    made = Experiment(tmp_path)
    yield made
    made.run.close()


def test_a_directory_that_another_trial_has_is_not_given_away(experiment: Experiment) -> None:
    owner = experiment.trial("mine", saved=[0], trial_id="1")
    late = experiment.trial("", trial_id="2", trial_dirname_creator=lambda trial: "mine")
    experiment.publish("mine", 0)
    experiment.adopt(owner, late)
    assert late.relative_logdir is None
    assert ray_records.current(late) is None


def test_the_directory_that_ray_makes_in_a_restore_is_not_taken_for_the_trials_own(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives one to each trial that had none as the state was saved."""
    for name in ("trial_driver_staging_path", "experiment_driver_staging_path"):
        monkeypatch.setattr(Storage, name, str(tmp_path / "staging"), raising=False)
    experiment.publish(MINE, 0, 1)
    saved = experiment.trial("", trial_id="1", status=Trial.PENDING)
    tune.register_trainable(saved.trainable_name, lambda config: None)
    saved.stub = False
    saved.create_placement_group_factory()
    state = {"trial_data": [saved.get_json_state()]}
    restoring = SimpleNamespace(_storage=saved.storage)
    (trial,) = TuneController._restore_trials(restoring, state)
    assert ray_records.directory_of(trial) not in ("", MINE), "Ray makes none any more"
    experiment.adopt(trial)
    assert ray_records.directory_of(trial) == MINE
    assert trial.checkpoint.path == f"{experiment.root}/{MINE}/{checkpoint_name(1)}"


@pytest.mark.parametrize("is_clone", [True, False])
def test_a_trial_that_has_begun_keeps_its_directory(experiment: Experiment, is_clone: bool) -> None:
    begun = experiment.trial(MINE, trial_id="1")
    experiment.publish("train_1_9_2026", 0)
    if is_clone:
        experiment.publish(OTHER, 0)
        begun.run_metadata.checkpoint_manager._latest_checkpoint_result = experiment.result(
            OTHER, 0
        )
    else:
        experiment.publish(MINE, 0)
    experiment.adopt(begun)
    assert begun.relative_logdir == MINE


@pytest.mark.parametrize("old", ["mine", "mine_0_x=1_2026"])
def test_a_trial_that_replaces_another_one_begins_anew_in_a_directory_of_its_own(
    experiment: Experiment, old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray restarts trials so; with a name of the user's, that of the old one would do for both."""
    made = tmp_path / "driver"
    monkeypatch.setattr(Storage, "experiment_driver_staging_path", str(made))
    monkeypatch.setattr(Storage, "trial_driver_staging_path", str(made / "trial"))
    kind = "trial_dirname_creator" if old == "mine" else "trial_name_creator"
    names: dict[str, Any] = {kind: lambda trial: "mine", "experiment_tag": "0_x=1"}
    restarted = experiment.trial("", trial_id="2", **names)
    experiment.run.saved_trials = frozenset({TrialNames("1", old)})
    experiment.publish(old, 0, 1)
    experiment.adopt(restarted)
    assert ray_records.current(restarted) is None
    directory = ray_records.directory_of(restarted)
    assert directory.startswith("mine_")
    assert directory != old
    again = experiment.trial(directory, trial_id="2", **names)  # as saved before it reported
    experiment.run.saved_trials = frozenset({TrialNames("2", directory)})
    experiment.adopt(again)
    assert ray_records.current(again) is None
    assert ray_records.directory_of(again) == directory
