"""A trial's directory is not named like anything else, and is forgotten once it has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.restored_run import MINE, Experiment
from tune_sync.errors import ConfigError
from tune_sync.ray_adapter import SyncCallback


@pytest.mark.parametrize("name", ["checkpoint_000003", ".tune_sync", "tuner.pkl"])
def test_a_trial_that_is_named_like_something_else_does_not_train(
    tmp_path: Path, name: str
) -> None:
    experiment = Experiment(tmp_path)
    callback = SyncCallback(experiment.filesystem)
    fine, named = experiment.trial(MINE), experiment.trial(name, trial_id="2")
    callback.on_trial_start(0, [fine, named], fine)
    with pytest.raises(ConfigError, match=f"{name!r}.*trial_dirname_creator"):
        callback.on_trial_start(0, [fine, named], named)
    experiment.run.close()


@pytest.mark.parametrize("ends", ["on_trial_complete", "on_trial_error"])
def test_of_a_trial_that_has_ended_nothing_that_was_taken_is_remembered(
    tmp_path: Path, ends: str
) -> None:
    experiment = Experiment(tmp_path)
    trial, uploads = experiment.trial(MINE), experiment.filesystem.handler.uploads
    callback = SyncCallback(experiment.filesystem)
    uploads.heard_of([(f"{MINE}/checkpoint_000000", "0" * 32, 0)])
    uploads.take(f"{MINE}/checkpoint_000000")
    getattr(callback, ends)(0, [trial], trial)
    assert not uploads._reported
    experiment.run.close()
