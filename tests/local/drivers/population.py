"""Population Based Training on two Ray nodes of this machine, where next to nothing travels.

`UPLOAD_DIR STAGING_DIR`. Prints, as JSON, of each trial: where it went on from, and its last step.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.cluster_utils import Cluster
from ray.tune.schedulers import PopulationBasedTraining

from tests.hosts.drivers.trainables import read_checkpoint, write_checkpoint
from tune_sync import RunConfig, SyncConfig

STEPS, PAUSE_S, INTERVAL = 12, 0.2, 4
NEVER_S = 10_000.0  # no turn comes in this run


def loop(config: dict[str, Any]) -> None:
    trial_id, node = tune.get_context().get_trial_id(), ray.get_runtime_context().get_node_id()
    found, first, came_from = tune.get_checkpoint(), 0, {}
    if found is not None:
        with found.as_directory() as directory:
            came_from = read_checkpoint(directory)
        first = came_from["step"] + 1
    for step in range(first, STEPS):
        with tempfile.TemporaryDirectory() as made:
            write_checkpoint(Path(made), {}, {"step": step, "trial": trial_id, "on": node})
            metrics = {"step": step, "score": step + 100 * config["rate"], "on": node,
                       "came_from": came_from}  # fmt: skip
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(made))
        time.sleep(PAUSE_S)


def first_rate(config: dict[str, Any]) -> float:
    return 0.1 + 0.1 * config["start"]


def placed(config: dict[str, Any]) -> tune.PlacementGroupFactory:
    """Each trial has a node of its own, so that what one clones of the other is far away."""
    return tune.PlacementGroupFactory([{"CPU": 1, f"node{config['start']}": 1}])


def main() -> None:
    upload_dir, staging_dir = sys.argv[1:]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for number in range(2):
        cluster.add_node(num_cpus=1, resources={f"node{number}": 1})
    ray.init(address=cluster.address, log_to_driver=False)
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration", metric="score", mode="max", quantile_fraction=0.5,
        perturbation_interval=INTERVAL, hyperparam_mutations={"rate": [0.1, 0.2]}, synch=True,
    )  # fmt: skip
    results = tune.Tuner(
        tune.with_resources(loop, placed),
        param_space={"start": tune.grid_search([0, 1]), "rate": tune.sample_from(first_rate)},
        tune_config=tune.TuneConfig(scheduler=scheduler),
        run_config=RunConfig(
            name="x", verbose=0,
            sync_config=SyncConfig(
                upload_dir=upload_dir, wait_for="staged", staging_dir=staging_dir,
                sync_on_checkpoint=False, sync_period=NEVER_S,
            ),
        ),
    ).fit()  # fmt: skip
    assert not results.errors, results.errors
    told = []
    for result in results:
        rows = map(json.loads, Path(result.path, "result.json").read_text().splitlines())
        ways = {json.dumps([row["came_from"], row["on"]]) for row in rows if row["came_from"]}
        told.append({"directory": Path(result.path).name, "step": result.metrics["step"],
                     "ways": [json.loads(way) for way in ways]})  # fmt: skip
    print("RESULT", json.dumps(told))


if __name__ == "__main__":
    main()
