"""`tune.run`, or whatever builds its own RunConfig: the same through keyword arguments."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ray import tune

from tune_sync import SyncConfig, run_config_kwargs


def train(config: dict[str, int]) -> None:
    for step in range(3):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step.txt").write_text(str(step))
            checkpoint = tune.Checkpoint.from_directory(folder)
            tune.report({"product": step * config["factor"]}, checkpoint=checkpoint)


def main() -> None:
    analysis = tune.run(
        train,
        config={"factor": tune.grid_search([2, 3])},
        metric="product",
        mode="max",
        verbose=0,
        **run_config_kwargs(SyncConfig(), name="tune_run", on_existing="move_aside"),
    )
    with analysis.best_checkpoint.as_directory() as folder:
        print("best:", analysis.best_config, "at step", Path(folder, "step.txt").read_text())


if __name__ == "__main__":
    main()
