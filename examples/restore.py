"""A run that breaks, moves to another directory, and goes on there with plain Ray."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ray import tune

from tune_sync import RunConfig, SyncConfig


def train(config: dict[str, str]) -> None:
    checkpoint, step = tune.get_checkpoint(), 0
    if checkpoint:
        with checkpoint.as_directory() as folder:
            step = int(Path(folder, "step.txt").read_text())
        print(f"going on after step {step}")
    while step < 6:
        step += 1
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step.txt").write_text(str(step))
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(folder))
        if step == 3 and not os.path.exists(config["repaired"]):
            raise RuntimeError("the machine broke")


def main() -> None:
    place = Path(tempfile.mkdtemp(prefix="restore-"))
    repaired = place / "repaired"
    config = RunConfig(name="restore", storage_path=place, sync_config=SyncConfig(), verbose=0)
    tuner = tune.Tuner(train, param_space={"repaired": str(repaired)}, run_config=config)
    print("first run:", tuner.fit()[0].error)

    repaired.touch()
    moved = (place / "restore").rename(place / "moved")
    restored = tune.Tuner.restore(str(moved), trainable=train, resume_errored=True)
    result = restored.fit()[0]
    print("restored: step", result.metrics["step"], "in", result.path)


if __name__ == "__main__":
    main()
