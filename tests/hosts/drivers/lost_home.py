"""A checkpoint whose home is gone: ``make`` prints it, ``open TEXT`` tries to read it."""

from __future__ import annotations

import base64
import json
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.cloudpickle
from ray import tune

from tests.hosts.drivers.trainables import read_checkpoint, train_n
from tune_sync import RunConfig


def make() -> dict[str, Any]:
    (result,) = tune.Tuner(
        tune.with_resources(train_n, {"cpu": 1, "w1": 1}),
        param_space={"settings": {"steps": 1}},
        run_config=RunConfig(name="lost", verbose=0),
    ).fit()
    text = base64.b64encode(ray.cloudpickle.dumps(result.checkpoint)).decode()
    return {"node": socket.gethostname(), "checkpoint": text, "trial_node": result.metrics["node"]}


def look(checkpoint: tune.Checkpoint) -> str:
    """What comes of opening it, on this node."""
    try:
        with tempfile.TemporaryDirectory() as directory:
            checkpoint.to_directory(directory)
            return f"step {read_checkpoint(directory)['step']}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def open_it(text: str) -> dict[str, Any]:
    checkpoint = ray.cloudpickle.loads(base64.b64decode(text))
    task = ray.remote(num_cpus=0, resources={"w1": 0.01})(look)
    there = Path(checkpoint.path).exists()
    return {"driver": look(checkpoint), "task": ray.get(task.remote(checkpoint)), "there": there}


if __name__ == "__main__":
    ray.init(log_to_driver=False)
    print("RESULT", json.dumps(make() if sys.argv[1] == "make" else open_it(sys.argv[2])))
