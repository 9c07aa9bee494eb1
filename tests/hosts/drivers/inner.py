"""A Ray Train run with two workers on two hosts, inside a Tune trial."""

from __future__ import annotations

import json
import socket
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray import tune
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tests.hosts.drivers.ranks import QUICK
from tune_sync import RunConfig, inner_run_config


def loop(config: dict[str, Any]) -> None:
    rank = ray.train.get_context().get_world_rank()
    for step in range(2):
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, f"part_{rank}").write_text(f"{step} {socket.gethostname()}")
            checkpoint = ray.train.Checkpoint.from_directory(directory)
            ray.train.report({"step": step}, checkpoint=checkpoint)


def trial(config: dict[str, Any]) -> None:
    trainer = DataParallelTrainer(
        loop,
        scaling_config=ray.train.ScalingConfig(
            num_workers=2, resources_per_worker={"CPU": 0.4}, placement_strategy="STRICT_SPREAD"
        ),
        run_config=inner_run_config(),
    )
    result = trainer.fit()
    with result.checkpoint.as_directory() as directory:
        parts = {path.name: path.read_text() for path in Path(directory).iterdir()}
    tune.report(
        {"step": result.metrics["step"], "path": result.checkpoint.path, "parts": parts,
         "node": socket.gethostname()}
    )  # fmt: skip


def main() -> None:
    ray.init(log_to_driver=False, runtime_env={"env_vars": QUICK})
    results = tune.Tuner(
        tune.with_resources(trial, {"cpu": 0.1, "w1": 0.1}),
        run_config=RunConfig(name="outer", verbose=0),
    ).fit()
    (result,) = results
    inner = Path(result.metrics["path"]) if not results.errors else Path("/absent")
    print(
        "RESULT",
        json.dumps(
            {
                "errors": [str(error) for error in results.errors],
                "metrics": {k: result.metrics.get(k) for k in ("step", "path", "parts", "node")},
                "at_home": {p.name: p.read_text() for p in inner.glob("*")},
            }
        ),
    )


if __name__ == "__main__":
    main()
