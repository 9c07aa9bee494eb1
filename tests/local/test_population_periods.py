"""Population Based Training with `sync_on_checkpoint=False`: what a clone needs travels at once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from tests.hosts.drivers.trainables import read_checkpoint, write_checkpoint
from tests.local.drivers.population import STEPS
from tests.local.own_ray import own_ray
from tests.local.test_periods import is_whole, named, newest_state, published, watched
from tune_sync import RunConfig, SyncConfig

MEMBERS_COUNT, MEMBER_STEPS, STEP_S, SAVE_S, PERIOD_S = 4, 6, 0.2, 0.4, 0.1
TIMEOUT_S = 120.0


@pytest.mark.slow
def test_a_clone_on_another_node_gets_a_checkpoint_whose_turn_has_not_come(tmp_path: Path) -> None:
    """Two nodes, which take longer to start than one: on one, it would be read from its disk."""
    far = tmp_path / "far"
    argv = [sys.executable, "-m", "tests.local.drivers.population", far, tmp_path / "staging"]
    with own_ray() as env:
        done = subprocess.run(
            argv, env=env, text=True, check=False, capture_output=True, timeout=TIMEOUT_S
        )
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = (x for x in done.stdout.splitlines() if x.startswith("RESULT "))
    trials = json.loads(line.removeprefix("RESULT "))
    ways = [(trial["directory"], *way) for trial in trials for way in trial["ways"]]
    clones = [(came, node) for directory, came, node in ways if came["trial"] not in directory]
    assert clones, "no exploit"
    assert all(came["on"] != node for came, node in clones), "it was read from the node's own disk"
    assert [trial["step"] for trial in trials] == [STEPS - 1] * 2
    numbers = published(far / "x").values()
    assert all(1 <= len(of_trial) < STEPS for of_trial in numbers), "not all of them travelled"


class Member(tune.Trainable):  # type: ignore[misc]
    """One of a population: the higher its number, the better, from the first step on."""

    def setup(self, config: dict[str, Any]) -> None:
        self.step_done, self.clones_count = -1, 0

    def step(self) -> dict[str, Any]:
        time.sleep(STEP_S)
        self.step_done += 1
        return {
            "score": self.config["number"] + self.step_done / 1000, "step": self.step_done,
            "clones_count": self.clones_count, "done": self.step_done + 1 >= MEMBER_STEPS,
        }  # fmt: skip

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        time.sleep(SAVE_S)
        state = {"step": self.step_done, "clones": self.clones_count, "trial": self.trial_id}
        write_checkpoint(Path(checkpoint_dir), {}, state)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        state = read_checkpoint(Path(checkpoint_dir))
        self.step_done = state["step"]
        self.clones_count = state["clones"] + (state["trial"] != self.trial_id)


def test_saves_that_ray_drops_as_it_pauses_a_trial_travel_before_it_starts_again(
    local_ray: None, tmp_path: Path
) -> None:
    """Half of the population waits for the other half all the time; turns come often."""
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration", metric="score", mode="max", synch=True,
        perturbation_interval=2, quantile_fraction=0.5, hyperparam_mutations={"rate": [0.1, 0.2]},
    )  # fmt: skip
    far = tmp_path / "far"
    tuner = tune.Tuner(
        tune.with_resources(Member, {"cpu": ray.cluster_resources()["CPU"] / 2}),
        param_space={"number": tune.grid_search(list(range(MEMBERS_COUNT))), "rate": 0.1},
        tune_config=tune.TuneConfig(scheduler=scheduler),
        run_config=RunConfig(
            name="x", verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=2, checkpoint_at_end=True),
            sync_config=SyncConfig(
                upload_dir=str(far), wait_for="staged", staging_dir=str(tmp_path / "staging"),
                sync_on_checkpoint=False, sync_period=PERIOD_S,
            ),
        ),
    )  # fmt: skip
    with watched(far / "x", last=None) as wrong:
        results = tuner.fit()
    assert not results.errors, results.errors
    assert [result.metrics["step"] for result in results] == [MEMBER_STEPS - 1] * MEMBERS_COUNT
    assert any(result.metrics["clones_count"] for result in results), "no exploit"
    assert wrong == []
    for _, names in named(newest_state(far / "x"), far / "x"):
        assert names
        assert all(is_whole(far / "x", path) for path in names)
