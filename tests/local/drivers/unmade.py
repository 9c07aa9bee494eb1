"""A search that makes one trial at a time, each of which reports once and waits to go on.

Argument: a directory, for its results and for the file that lets trials go on.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray import tune

from tests.hosts.drivers.trainables import train_n
from tune_sync import RunConfig, SyncConfig

NAME, GO_ON = "x", "go_on"
TRIALS_COUNT, STEPS = 4, 2


def waits(config: dict[str, Any]) -> None:
    if tune.get_checkpoint() is None:
        train_n({"settings": {"steps": 1}})
    while not Path(config["folder"], GO_ON).exists():
        time.sleep(0.1)
    train_n({"settings": {"steps": STEPS}})


def main() -> None:
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    folder, number = sys.argv[1], tune.grid_search(list(range(TRIALS_COUNT)))
    tune.Tuner(
        waits,
        param_space={"folder": folder, "number": number},
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        run_config=RunConfig(name=NAME, storage_path=folder, sync_config=SyncConfig(), verbose=0),
    ).fit()


if __name__ == "__main__":
    main()
