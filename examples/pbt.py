"""Population based training: bad trials go on from checkpoints of good ones, on any node."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from tune_sync import RunConfig, SyncConfig

STEPS = 6
RATES = [0.01, 0.9]


def train(config: dict[str, float]) -> None:
    checkpoint = tune.get_checkpoint()
    state = {"step": 0, "score": 0.0}
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = json.loads(Path(folder, "state.json").read_text())
    while state["step"] < STEPS:
        state = {"step": state["step"] + 1, "score": state["score"] + config["rate"]}
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps(state))
            tune.report(state, checkpoint=tune.Checkpoint.from_directory(folder))


def main() -> None:
    scheduler = PopulationBasedTraining(
        time_attr="step",
        perturbation_interval=3,
        hyperparam_mutations={"rate": tune.uniform(0.0, 1.0)},
        synch=True,
    )
    tuner = tune.Tuner(
        train,
        param_space={"rate": tune.grid_search(RATES)},
        tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=scheduler),
        run_config=RunConfig(name="pbt", sync_config=SyncConfig(), overwrite=True, verbose=0),
    )
    for rate, result in zip(RATES, tuner.fit(), strict=True):
        score = result.metrics["score"]
        print(f"began with rate {rate}, ends with {score:.2f}; alone: {STEPS * rate:.2f}")


if __name__ == "__main__":
    main()
