"""A checkpoint from which another trial goes on stays for as long as state names it."""

from __future__ import annotations

import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from tests.hosts.drivers.trainables import read_checkpoint, write_checkpoint
from tests.hosts.searches import wait_for
from tests.local.test_periods import is_whole, named, newest_state, published, watched
from tune_sync import RunConfig, SyncConfig

STEPS, PAUSE_S, INTERVAL = 14, 0.3, 3
SLOW_S = 3.0
RATES = [0.1, 0.2]
MEMBERS, LONGEST_S = 6, 0.5
SEEDS = range(1, 20)
KEPT_COUNT = INTERVAL + 1  # with fewer, one is gone when another trial is told to clone it


def loop(config: dict[str, Any]) -> None:
    """One that goes on from another trial's checkpoint needs long for a checkpoint of its own.

    All begin together: one that ends before another one begins is not cloned. The worse one waits
    for its first chance to be a clone, and the better one for the clone to begin.
    """
    trial_id, first = tune.get_context().get_trial_id(), 0
    reported, cloned = (Path(config["begun"]).with_name(name) for name in ("reported", "cloned"))
    is_better = config["rate"] == max(RATES)
    found = tune.get_checkpoint()
    if found is not None:
        with found.as_directory() as directory:
            came_from = read_checkpoint(directory)
        first = came_from["step"] + 1
        if came_from["trial"] != trial_id:
            cloned.touch()
            time.sleep(SLOW_S)
    else:
        Path(config["begun"], trial_id).touch()
        wait_for(lambda: len(os.listdir(config["begun"])) == len(RATES), "the others")
    for step in range(first, STEPS):
        if first == 0 and step == INTERVAL - 1 and not is_better:
            wait_for(reported.exists, "the better one")
        if first == 0 and step == STEPS - 1 and is_better:
            wait_for(cloned.exists, "a clone")
        with tempfile.TemporaryDirectory() as made:
            write_checkpoint(Path(made), {}, {"step": step, "trial": trial_id})
            metrics = {"step": step, "score": step + 100 * config["rate"], "is_clone": first > 0}
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(made))
        if step == INTERVAL:  # the driver has heard of the one before, which may be cloned
            reported.touch()
        time.sleep(PAUSE_S)


WAYS: dict[str, dict[str, Any] | None] = {
    "home": None,
    "stored": {},
    "staged": {"wait_for": "staged"},
}
QUICK = {("stored", 1)}


@pytest.mark.parametrize(
    ("way", "keep"),
    [
        pytest.param(way, keep, marks=[] if (way, keep) in QUICK else pytest.mark.slow)
        for way in WAYS
        for keep in (KEPT_COUNT, 1)
    ],
)
def test_what_a_clone_goes_on_from_is_there(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, keep: int
) -> None:
    fields = WAYS[way]
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


class Member(tune.Trainable):  # type: ignore[misc]
    """One of a population: its scores are dice, so that everyone is cloned at some time."""

    def setup(self, config: dict[str, Any]) -> None:
        self.step_done, self.clones_count = -1, 0
        self.dice = random.Random(f"{config['seed']} {self.trial_id}")

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        self.step_done += 1
        return {
            "score": self.dice.random(), "clones_count": self.clones_count,
            "done": self.step_done + 1 >= self.config["steps"],
        }  # fmt: skip

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        state = {"step": self.step_done, "clones_count": self.clones_count, "trial": self.trial_id}
        write_checkpoint(Path(checkpoint_dir), {}, state)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        state = read_checkpoint(Path(checkpoint_dir))
        self.step_done = state["step"]
        self.clones_count = state["clones_count"] + (state["trial"] != self.trial_id)


class SlowDeletes(tune.Callback):  # type: ignore[misc]
    """Each delete of a checkpoint waits for a while that dice say."""

    def __init__(self, seed: int) -> None:
        self.dice, self.handler = random.Random(seed), None

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if self.handler is None:
            self.handler = trial.storage.storage_filesystem.handler
            self.handler.run.watch(self)

    def recorded(self, checkpoint: str) -> None:
        """See `Watcher.recorded`."""

    def retiring(self, checkpoint: str) -> None:
        time.sleep(self.dice.uniform(0, LONGEST_S))

    def state_written(self) -> None:
        """See `Watcher.state_written`."""

    def flush(self) -> None:
        """See `Watcher.flush`."""

    def close(self) -> None:
        """See `Watcher.close`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return tune.Callback, ()  # into the saved settings


@pytest.mark.slow  # on a busy machine it takes minutes: its members clone each other at each step
@pytest.mark.parametrize(("seed", "steps"), [(0, 6), *((seed, 40) for seed in SEEDS)])
def test_a_population_that_keeps_one_and_changes_at_each_step_finds_what_it_loads(
    local_ray: None, tmp_path: Path, seed: int, steps: int
) -> None:
    random.seed(seed)
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration", metric="score", mode="max", quantile_fraction=0.5,
        perturbation_interval=1, hyperparam_mutations={"rate": RATES},
    )  # fmt: skip
    results = tune.Tuner(
        tune.with_resources(Member, {"cpu": 0.3}),
        param_space={"rate": 0.1, "seed": seed, "steps": steps},
        tune_config=tune.TuneConfig(
            num_samples=MEMBERS, scheduler=scheduler, reuse_actors=True
        ),
        run_config=RunConfig(
            name="x", storage_path=tmp_path, verbose=0, callbacks=[SlowDeletes(seed)],
            checkpoint_config=tune.CheckpointConfig(
                num_to_keep=1, checkpoint_frequency=1, checkpoint_at_end=True
            ),
        ),
    ).fit()  # fmt: skip
    assert not results.errors
    assert any(result.metrics["clones_count"] for result in results)
    root = tmp_path / "x"
    assert len(results) == MEMBERS
    for result in results:
        (left,) = Path(result.path).glob("checkpoint_*")
        assert read_checkpoint(left)["step"] == result.metrics["training_iteration"] - 1
        assert is_whole(root, left)
    assert {len(numbers) for numbers in published(root).values()} == {1}
