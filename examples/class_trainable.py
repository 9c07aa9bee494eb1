"""A class trainable: `save_checkpoint` and `load_checkpoint` get ordinary local directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ray import tune

from tune_sync import RunConfig, SyncConfig


class Counter(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.total = 0

    def step(self) -> dict[str, Any]:
        self.total += self.config["stride"]
        return {"total": self.total, "done": self.total >= 5 * self.config["stride"]}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "total.json").write_text(json.dumps(self.total))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.total = json.loads(Path(checkpoint_dir, "total.json").read_text())


def main() -> None:
    tuner = tune.Tuner(
        Counter,
        param_space={"stride": tune.grid_search([1, 10])},
        run_config=RunConfig(
            name="class_trainable",
            overwrite=True,
            sync_config=SyncConfig(),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=2, checkpoint_at_end=True),
            verbose=0,
        ),
    )
    for result in tuner.fit():
        print(result.config, "total", result.metrics["total"])
        print("  checkpoints:", [Path(c.path).name for c, _ in result.best_checkpoints])


if __name__ == "__main__":
    main()
