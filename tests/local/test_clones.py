"""A checkpoint from which another trial goes on stays for as long as state names it."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from tests.hosts.drivers.trainables import read_checkpoint, write_checkpoint
from tests.hosts.searches import wait_for
from tests.local.test_periods import is_whole, named, newest_state, watched
from tune_sync import RunConfig, SyncConfig

STEPS, PAUSE_S, INTERVAL = 14, 0.3, 3
SLOW_S = 3.0
RATES = [0.1, 0.2]
KEPT_COUNT = INTERVAL + 1  # with fewer, one is gone when another trial is told to clone it


def loop(config: dict[str, Any]) -> None:
    """One that goes on from another trial's checkpoint needs long for a checkpoint of its own.

    All begin together: one that ends before another one begins is not cloned.
    """
    trial_id, first = tune.get_context().get_trial_id(), 0
    found = tune.get_checkpoint()
    if found is not None:
        with found.as_directory() as directory:
            came_from = read_checkpoint(directory)
        first = came_from["step"] + 1
        if came_from["trial"] != trial_id:
            time.sleep(SLOW_S)
    else:
        Path(config["begun"], trial_id).touch()
        wait_for(lambda: len(os.listdir(config["begun"])) == len(RATES), "the others")
    for step in range(first, STEPS):
        with tempfile.TemporaryDirectory() as made:
            write_checkpoint(Path(made), {}, {"step": step, "trial": trial_id})
            metrics = {"step": step, "score": step + 100 * config["rate"], "is_clone": first > 0}
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(made))
        time.sleep(PAUSE_S)


@pytest.mark.parametrize("keep", [KEPT_COUNT, 1])
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(None, id="home", marks=pytest.mark.slow),
        pytest.param({}, id="stored"),
        pytest.param({"wait_for": "staged"}, id="staged"),
    ],
)
def test_what_a_clone_goes_on_from_is_there(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any] | None, keep: int,
) -> None:  # fmt: skip
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    far, begun = tmp_path / "far", tmp_path / "begun"
    begun.mkdir()
    if fields is None:
        place = {"storage_path": far, "sync_config": SyncConfig()}
    else:
        place = {"sync_config": SyncConfig(upload_dir=far, **fields)}
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration", metric="score", mode="max", quantile_fraction=0.5,
        perturbation_interval=INTERVAL, hyperparam_mutations={"rate": RATES},
        resample_probability=0.0,
    )  # fmt: skip
    tuner = tune.Tuner(
        loop, param_space={"rate": tune.grid_search(RATES), "begun": str(begun)},
        tune_config=tune.TuneConfig(scheduler=scheduler),
        run_config=RunConfig(
            name="x", verbose=0, **place,
            checkpoint_config=tune.CheckpointConfig(num_to_keep=keep),
        ),
    )  # fmt: skip
    with watched(far / "x", last=None) as wrong:
        results = tuner.fit()
    assert not results.errors
    assert any(result.metrics["is_clone"] for result in results)
    assert wrong == []
    found = named(newest_state(far / "x"), far / "x")
    assert all(is_whole(far / "x", path) for _, names in found for path in names)
