"""Class trainables whose results are in a bucket, or in a directory that all nodes see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from tests.hosts.drivers.trainables import TrainN, read_checkpoint
from tests.local.trainables import FAILS_AT, STEPS, Stumbles
from tests.stores.seaweed import S3Server
from tune_sync import RunConfig, SyncConfig, restore_kwargs

INTERVAL = 2


@pytest.fixture(params=["bucket", "shared directory"])
def place(request: pytest.FixtureRequest, own_server: S3Server, tmp_path: Path) -> dict[str, Any]:
    """Where results go: fields of `SyncConfig`."""
    if request.param == "bucket":
        return {"upload_dir": "s3://bucket/classes", "storage_options": own_server.options}
    return {"upload_dir": str(tmp_path / "shared")}


def given(place: dict[str, Any], name: str) -> dict[str, Any]:
    """What a restore is given."""
    url = f"{place['upload_dir']}/{name}"
    options = place.get("storage_options")
    return restore_kwargs(url, options) if options else {"path": url}


def test_one_that_failed_goes_on_from_its_last_checkpoint_after_a_restore(
    place: dict[str, Any], tmp_path: Path
) -> None:
    config = RunConfig(
        name="stumbles", verbose=0, sync_config=SyncConfig(**place),
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
    )  # fmt: skip
    space = {"mark": str(tmp_path / "mark")}
    assert len(tune.Tuner(Stumbles, param_space=space, run_config=config).fit().errors) == 1
    tuner = tune.Tuner.restore(trainable=Stumbles, resume_errored=True, **given(place, "stumbles"))
    (result,) = tuner.fit()
    assert result.error is None
    assert (result.metrics["step"], result.metrics["resumed_at"]) == (STEPS - 1, FAILS_AT)
    steps = []
    for checkpoint, _ in result.best_checkpoints:
        with checkpoint.as_directory() as local:
            steps.append(read_checkpoint(local)["step"])
    assert sorted(steps) == list(range(STEPS))


@pytest.mark.parametrize("reuse", [False, True])
def test_one_of_a_population_goes_on_from_what_another_has_stored(
    place: dict[str, Any], reuse: bool
) -> None:
    """With `reuse` one process is each of them in turn."""
    name = f"population-{reuse}"
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration", metric="score", mode="max", quantile_fraction=0.5,
        perturbation_interval=INTERVAL, hyperparam_mutations={"rate": [0.1, 0.2]}, synch=True,
    )  # fmt: skip
    results = tune.Tuner(
        tune.with_resources(TrainN, {"cpu": 2 if reuse else 1}),
        param_space={"rate": 0.1, "settings": tune.grid_search([{"steps": 2 * INTERVAL}] * 2)},
        tune_config=tune.TuneConfig(scheduler=scheduler, reuse_actors=reuse),
        run_config=RunConfig(
            name=name, verbose=0, sync_config=SyncConfig(**place),
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_frequency=INTERVAL, checkpoint_at_end=True
            ),
        ),
    ).fit()  # fmt: skip
    assert not results.errors
    worse, better = sorted(results, key=lambda result: float(result.metrics["score"]))
    assert worse.metrics["parent"] == better.metrics["trial_id"]
    assert worse.metrics["resumed_at"] == INTERVAL
    assert (worse.metrics["pid"] == better.metrics["pid"]) == reuse
    restored = tune.Tuner.restore(trainable=TrainN, **given(place, name)).get_results()
    for result in restored:
        with result.checkpoint.as_directory() as local:
            assert read_checkpoint(local)["step"] == result.metrics["step"]
