"""A search on a Ray that is running, to be killed: `STORAGE TRAINABLE CHECKPOINT_CONFIG SPACE`.

The last two are JSON. The run's name is "x".
"""

from __future__ import annotations

import json
import sys

import ray
from ray import tune

from tests.local import trainables
from tune_sync import RunConfig


def main() -> None:
    storage, name, checkpoint_config, space = sys.argv[1:]
    ray.init(address="auto", log_to_driver=False)
    config = RunConfig(
        name="x",
        storage_path=storage,
        verbose=0,
        checkpoint_config=tune.CheckpointConfig(**json.loads(checkpoint_config)),
    )
    trainable = tune.with_resources(getattr(trainables, name), {"cpu": 1})
    tune.Tuner(trainable, param_space=json.loads(space), run_config=config).fit()


if __name__ == "__main__":
    main()
