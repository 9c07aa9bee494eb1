"""Starts or restores a run and prints its end, also when another run is in its way.

``claim.py fit NAME START_AT STEPS PAUSE_S [TOLD_AT [WAIT_FOR]]`` (NAME "-": Ray's default name;
START_AT: seconds since the epoch at which to begin; TOLD_AT: see ``trainables``; WAIT_FOR: for
``SyncConfig``), ``claim.py restore PATH``.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from typing import Any

import ray
from ray import tune

from tests.hosts.drivers.trainables import train_n, whole_digest
from tune_sync import RunConfig, SyncConfig

TRAINABLE = tune.with_resources(train_n, {"cpu": 0.5})


def new_run(
    name: str, start_at_s: str, steps: str, pause_s: str, told_at: str = "-1",
    wait_for: str = "stored",
) -> tune.Tuner:  # fmt: skip
    config = RunConfig(
        name=None if name == "-" else name, verbose=0, sync_config=SyncConfig(wait_for=wait_for)
    )
    settings = {"steps": int(steps), "pause_s": float(pause_s), "told_at": int(told_at)}
    return tune.Tuner(TRAINABLE, param_space={"settings": settings}, run_config=config)


def restored_run(path: str) -> tune.Tuner:
    return tune.Tuner.restore(path, TRAINABLE)


def outcome(mode: str, *args: str) -> dict[str, Any]:
    if mode == "fit":
        time.sleep(max(0.0, float(args[1]) - time.time()))
    began_s = time.time()
    try:
        results = (new_run if mode == "fit" else restored_run)(*args).fit()
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}
    (result,) = results
    opened = [
        whole_digest(checkpoint.to_directory(f"/tmp/opened-{uuid.uuid4().hex}")) == m["digest"]
        for checkpoint, m in result.best_checkpoints
    ]
    return {
        "opened": opened,
        "path": results.experiment_path,
        "errors": [str(error) for error in results.errors],
        "step": result.metrics["step"],
        "resumed_at": result.metrics["resumed_at"],
        "node": result.metrics["node"],
        "began_s": began_s,
    }


if __name__ == "__main__":
    ray.init(log_to_driver=False)
    print("RESULT", json.dumps(outcome(*sys.argv[1:])))
