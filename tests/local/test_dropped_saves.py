"""Population Based Training drops saves of trials that it pauses; none of them is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from tests.local.trainables import SlowToSave
from tune_sync import RunConfig

INTERVAL = 2
SAMPLES_COUNT = 4


def population(root: Path, save_s: float, synch: bool, **checkpoint: int) -> tune.ResultGrid:
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration", metric="score", mode="max", synch=synch,
        perturbation_interval=INTERVAL, quantile_fraction=0.5,
        hyperparam_mutations={"rate": [0.1, 0.2]},
    )  # fmt: skip
    (root / "begun").mkdir()
    space = {
        "save_s": save_s, "notes": str(root / "notes"), "rate": 0.1,
        "begun": str(root / "begun"), "together": SAMPLES_COUNT,
    }  # fmt: skip
    return tune.Tuner(
        tune.with_resources(SlowToSave, {"cpu": 0.5}),
        param_space=space,
        tune_config=tune.TuneConfig(num_samples=SAMPLES_COUNT, scheduler=scheduler),
        run_config=RunConfig(
            name="x", storage_path=root, verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=INTERVAL, **checkpoint),
        ),
    ).fit()  # fmt: skip


def stored(root: Path, trial_id: str) -> list[str]:
    (directory,) = (root / "x").glob(f"*_{trial_id}_*")
    return [(path / "name").read_text() for path in sorted(directory.glob("checkpoint_*"))]


def saved(root: Path) -> dict[str, list[str]]:
    """Trial id -> names of its saves, in order."""
    found: dict[str, list[str]] = {}
    for line in (root / "notes").read_text().splitlines():
        trial_id, name = line.split()
        found.setdefault(trial_id, []).append(name)
    return found


def parents(result: tune.Result) -> set[str]:
    rows = map(json.loads, Path(result.path, "result.json").read_text().splitlines())
    return {row["parent"] for row in rows} - {""}


@pytest.mark.parametrize(
    "synch",
    [
        pytest.param(True, marks=pytest.mark.lowest_slow),
        pytest.param(False, marks=[pytest.mark.slow, pytest.mark.lowest_slow]),
    ],
)
def test_every_save_of_a_population_is_stored_once(
    local_ray: None, tmp_path: Path, synch: bool
) -> None:
    results = population(tmp_path, 0.4, synch)
    assert not results.errors
    names = saved(tmp_path)
    every = {name for of_trial in names.values() for name in of_trial}
    for result in results:
        trial_id = result.metrics["trial_id"]
        assert stored(tmp_path, trial_id) == names[trial_id]
        assert parents(result) <= every
    assert any(parents(r) - set(names[r.metrics["trial_id"]]) for r in results), "no exploit"
    published = list((tmp_path / "x/.tune_sync/manifests").glob("*/*.json"))
    assert len(published) == len(every)


@pytest.mark.slow
def test_a_population_that_keeps_few_keeps_few(local_ray: None, tmp_path: Path) -> None:
    results = population(tmp_path, 0.4, True, num_to_keep=2)
    assert not results.errors
    for result in results:
        kept = stored(tmp_path, result.metrics["trial_id"])
        assert kept == saved(tmp_path)[result.metrics["trial_id"]][-len(kept) :]
        assert len(kept) == 2
