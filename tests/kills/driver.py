"""Starts a search, or restores it with plain Ray from the bucket's URL alone.

The argument is JSON: ``name``; ``url`` of the directory of experiments; ``notes``; ``restore``;
``alone``: restore without tune_sync; ``mode``, see `plan.Experiment`; ``num_to_keep``;
``max_failures``; ``trials_count``; ``state_every_s``, or null.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import ray
from ray import tune

import tune_sync
from tests.kills.plan import PERIODIC, REPLICATED, STAGED, STORED
from tests.kills.reader import plain_s3
from tests.kills.training import NotesErrors, train

PERIOD_S = 2.0
MODES: dict[str, dict[str, Any]] = {
    STORED: {"wait_for": "stored"},
    STAGED: {"wait_for": "staged"},
    REPLICATED: {"wait_for": "replicated", "fast_path": tune_sync.FastPath()},
    PERIODIC: {"wait_for": "staged", "sync_on_checkpoint": False, "sync_period": PERIOD_S},
}


def run_config(spec: dict[str, Any]) -> tune.RunConfig:
    """Ours, or Ray's."""
    fields = {
        "name": spec["name"],
        "verbose": 1,
        "callbacks": [NotesErrors()],
        "checkpoint_config": tune.CheckpointConfig(num_to_keep=spec["num_to_keep"]),
        "failure_config": tune.FailureConfig(max_failures=spec["max_failures"]),
    }
    if not spec["mode"]:
        return tune.RunConfig(storage_path=spec["url"], **fields)
    sync = tune_sync.SyncConfig(upload_dir=spec["url"], **MODES[spec["mode"]])
    return tune_sync.RunConfig(sync_config=sync, **fields)


def tuner_of(spec: dict[str, Any]) -> tune.Tuner:
    """A new tuner, or plain Ray's restore."""
    if spec["alone"]:
        place = f"{spec['url'].partition('://')[2]}/{spec['name']}"
        return tune.Tuner.restore(place, train, resume_errored=True, storage_filesystem=plain_s3())
    if spec["restore"]:
        return tune.Tuner.restore(f"{spec['url']}/{spec['name']}", train, resume_errored=True)
    space = {"index": tune.grid_search([*range(spec["trials_count"])]), "notes": spec["notes"]}
    return tune.Tuner(train, param_space=space, run_config=run_config(spec))


def main() -> None:
    spec = json.loads(sys.argv[1])
    # Else this warning is all that the end of the output shows.
    os.environ["TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S"] = "0"
    if spec["state_every_s"] is not None:
        os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = str(spec["state_every_s"])
    ray.init(log_to_driver=False)
    errors = [str(error) for error in tuner_of(spec).fit().errors]
    print("RESULT " + json.dumps({"errors": errors}), flush=True)


if __name__ == "__main__":
    main()
