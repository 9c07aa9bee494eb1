"""Results in a directory that all nodes see, such as an NFS mount.

Here it is a directory of this machine. On a cluster give the mounted path; before training starts,
every node that may run trials is asked whether it sees the same directory.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ray import tune

from tune_sync import RunConfig, SyncConfig

STEPS = 3


def train_fn(config: dict[str, Any]) -> None:
    for step in range(STEPS):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "model.txt").write_text(str(config["rate"] * step))
            checkpoint = tune.Checkpoint.from_directory(folder)
            tune.report({"score": config["rate"] * step}, checkpoint=checkpoint)


def main() -> None:
    mounted = Path.home() / "mounted"
    tuner = tune.Tuner(
        train_fn,
        param_space={"rate": tune.grid_search([0.1, 0.2])},
        run_config=RunConfig(
            name="exp",
            overwrite=True,  # what an earlier run left is moved aside
            sync_config=SyncConfig(upload_dir=mounted),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
        ),
    )
    results = tuner.fit()
    assert not results.errors
    stored = sorted(mounted.glob("exp/*/checkpoint_*/model.txt"))
    assert len(stored) == 2
    print("stored:", *stored, sep="\n  ")

    # Any node that sees the directory can go on from it, or read it.
    again = tune.Tuner.restore(str(mounted / "exp"), trainable=train_fn).get_results()
    best = again.get_best_result("score", "max")
    with best.checkpoint.as_directory() as folder:
        print("best model:", Path(folder, "model.txt").read_text())


if __name__ == "__main__":
    main()
