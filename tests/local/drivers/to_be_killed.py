"""A search on a Ray that is running, to be killed.

`STORAGE TRAINABLE CHECKPOINT_CONFIG SPACE [SYNC_CONFIG]`: the last three are JSON. In the space a
list is a grid, and `max_failures` is Ray's. With a sync config, STORAGE is its upload_dir. The
run's name is "x".
"""

from __future__ import annotations

import json
import sys

import ray
from ray import tune

from tests.local import trainables
from tune_sync import RunConfig, SyncConfig


def main() -> None:
    storage, name, checkpoint_config, space, *sync = sys.argv[1:]
    ray.init(address="auto", log_to_driver=False)
    fields = json.loads(sync[0]) if sync else {}
    given = json.loads(space)
    config = RunConfig(
        name="x",
        storage_path=None if sync else storage,
        sync_config=SyncConfig(upload_dir=storage if sync else None, **fields),
        verbose=0,
        checkpoint_config=tune.CheckpointConfig(**json.loads(checkpoint_config)),
        failure_config=tune.FailureConfig(max_failures=given.pop("max_failures", 0)),
    )
    trainable = tune.with_resources(getattr(trainables, name), {"cpu": 1})
    grids = {k: tune.grid_search(v) if isinstance(v, list) else v for k, v in given.items()}
    tune.Tuner(trainable, param_space=grids, run_config=config).fit()


if __name__ == "__main__":
    main()
