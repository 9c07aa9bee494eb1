"""A Ray Train run inside each trial: its checkpoints go where the trial's results go."""

from __future__ import annotations

import tempfile
from pathlib import Path

import ray
from ray import train, tune

# What TorchTrainer and the others are made from; it needs no training library.
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tune_sync import RunConfig, SyncConfig, inner_run_config


def train_worker(config: dict[str, float]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "weights.txt").write_text(str(config["rate"]))
        train.report(
            {"loss": 1 - config["rate"]}, checkpoint=train.Checkpoint.from_directory(folder)
        )


def trial(config: dict[str, float]) -> None:
    trainer = DataParallelTrainer(
        train_worker,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1}),
        run_config=inner_run_config("inner"),
    )
    result = trainer.fit()
    tune.report({"loss": result.metrics["loss"], "inner_checkpoint": result.checkpoint.path})


def main() -> None:
    ray.init("local", num_cpus=4, include_dashboard=False)
    tuner = tune.Tuner(
        trial,
        param_space={"rate": 0.8},
        run_config=RunConfig(
            name="inner_trainer", sync_config=SyncConfig(), overwrite=True, verbose=0
        ),
    )
    for result in tuner.fit():
        inner = Path(result.metrics["inner_checkpoint"])
        print(f"loss {result.metrics['loss']:.1f}, weights {(inner / 'weights.txt').read_text()}")


if __name__ == "__main__":
    main()
