"""Reports that do not wait for the destination, to which only some checkpoints travel.

The destination is a directory of this machine here; a bucket's URL works the same way.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ray import tune

from tune_sync import RunConfig, SyncConfig, staged_checkpoint

STEPS = 30


def train_fn(config: dict[str, Any]) -> None:
    for step in range(STEPS):
        with staged_checkpoint() as staged:  # or any directory, as without write-behind
            (staged.path / "model.txt").write_text(str(config["rate"] * step))
            # Its files are moved to where this node's agent sends them from.
            tune.report({"score": config["rate"] * step}, checkpoint=staged.checkpoint)
        time.sleep(0.1)


def main() -> None:
    far = Path.home() / "far"
    tuner = tune.Tuner(
        train_fn,
        param_space={"rate": tune.grid_search([0.1, 0.2])},
        run_config=RunConfig(
            name="exp",
            overwrite=True,  # what an earlier run left is moved aside
            sync_config=SyncConfig(
                upload_dir=far,
                wait_for="staged",
                sync_on_checkpoint=False,  # not every one: the newest of each trial ...
                sync_period=1,  # ... once in so many seconds, and its last
                max_bandwidth_bytes_per_s=50_000_000,  # of each node
                max_concurrent_transfers=4,  # of all nodes
            ),
        ),
    )
    results = tuner.fit()  # returns when all that has to be there is
    assert not results.errors
    stored = sorted(far.glob("exp/*/checkpoint_*"))
    print(f"{len(stored)} of {2 * STEPS} checkpoints travelled")
    assert 2 < len(stored) < 2 * STEPS

    again = tune.Tuner.restore(str(far / "exp"), trainable=train_fn).get_results()
    best = again.get_best_result("score", "max")
    with best.checkpoint.as_directory() as folder:
        print("best model:", Path(folder, "model.txt").read_text())


if __name__ == "__main__":
    main()
