"""Ray Train by itself: two workers, each with its part of every checkpoint."""

from __future__ import annotations

import tempfile
from pathlib import Path

import ray.train

# What TorchTrainer and the others are made from; it needs no training library.
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tune_sync import SyncConfig, run_config_kwargs


def train_worker(config: dict[str, int]) -> None:
    rank = ray.train.get_context().get_world_rank()
    for step in range(config["steps"]):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, f"shard_{rank}.txt").write_text(f"rank {rank}, step {step}")
            checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"step": step}, checkpoint=checkpoint)


def main() -> None:
    trainer = DataParallelTrainer(
        train_worker,
        train_loop_config={"steps": 2},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            **run_config_kwargs(
                SyncConfig(), name="ray_train", api="train", on_existing="move_aside"
            )
        ),
    )
    result = trainer.fit()
    with result.checkpoint.as_directory() as folder:
        for shard in sorted(Path(folder).iterdir()):
            print(shard.name, "holds:", shard.read_text())


if __name__ == "__main__":
    main()
