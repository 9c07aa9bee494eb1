"""A trial's directory is not named like anything else in an experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.restored_run import MINE, Experiment
from tune_sync.errors import ConfigError
from tune_sync.ray_adapter import SyncCallback


@pytest.mark.parametrize("name", ["checkpoint_000003", ".tune_sync"])
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
