"""The least there is to do: a function trainable whose checkpoints reach the driver's node."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from ray import tune

from tune_sync import RunConfig, SyncConfig


def train(config: dict[str, float]) -> None:
    checkpoint = tune.get_checkpoint()
    state = {"step": 0, "loss": 1.0}
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = json.loads(Path(folder, "state.json").read_text())
    while state["step"] < 5:
        state = {"step": state["step"] + 1, "loss": state["loss"] * (1 - config["rate"])}
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps(state))
            tune.report(state, checkpoint=tune.Checkpoint.from_directory(folder))


def main() -> None:
    tuner = tune.Tuner(
        train,
        param_space={"rate": tune.grid_search([0.1, 0.5])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=RunConfig(
            name="quickstart", sync_config=SyncConfig(), overwrite=True, verbose=0
        ),
    )
    best = tuner.fit().get_best_result()
    with best.checkpoint.as_directory() as folder:
        print("best:", best.config, Path(folder, "state.json").read_text())
    print("kept in:", best.path)


if __name__ == "__main__":
    main()
