"""Two ranks of a trainer inside of Tune, whose checkpoints travel behind. The first time: killed.

`UPLOAD_DIR STAGING_DIR [restore]`. Prints where it went on, as JSON. With the first generation of
Ray Train, as the second one is no trainable.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray import tune
from ray.train.data_parallel_trainer import DataParallelTrainer

from tune_sync import RunConfig, SyncConfig

RANKS_COUNT, PAUSE_S = 2, 0.3


def loop(config: dict[str, Any]) -> None:
    rank, first = ray.train.get_context().get_world_rank(), 0
    found = ray.train.get_checkpoint()
    if found is not None:
        with found.as_directory() as directory:
            first = json.loads(Path(directory, f"rank{rank}.json").read_text()) + 1
    for step in range(first, first + 2 if found is not None else 10_000):
        with tempfile.TemporaryDirectory() as made:
            Path(made, f"rank{rank}.json").write_text(json.dumps(step))
            metrics = {"step": step, "resumed_at": first}
            checkpoint = ray.train.Checkpoint.from_directory(made)
            ray.train.report(metrics, checkpoint=checkpoint)
        time.sleep(PAUSE_S)


def main() -> None:
    upload_dir, staging_dir, *restore = sys.argv[1:]
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    trainer = DataParallelTrainer(
        loop,
        scaling_config=ray.train.ScalingConfig(
            num_workers=RANKS_COUNT, resources_per_worker={"CPU": 0.5},
            trainer_resources={"CPU": 0},
        ),
    )  # fmt: skip
    sync_config = SyncConfig(
        upload_dir=upload_dir, wait_for="staged", staging_dir=staging_dir,
        sync_on_checkpoint=False, sync_period=10_000.0,
    )  # fmt: skip
    config = RunConfig(name="x", verbose=0, sync_config=sync_config)
    if restore:
        tuner = tune.Tuner.restore(os.path.join(upload_dir, "x"), trainer, resume_errored=True)
    else:
        tuner = tune.Tuner(trainer, run_config=config)
    (result,) = tuner.fit()
    assert result.error is None, result.error
    files = {Path(c.path).name: sorted(os.listdir(c.path)) for c, _ in result.best_checkpoints}
    steps = [m["step"] for _, m in result.best_checkpoints]
    print(
        "RESULT", json.dumps({"at": result.metrics["resumed_at"], "files": files, "steps": steps})
    )


if __name__ == "__main__":
    main()
