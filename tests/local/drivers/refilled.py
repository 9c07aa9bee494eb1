"""A search whose driver's node keeps the results, on a cluster of its own, run again and again.

`STORAGE STAGING_DIR`. Prints what it came to as JSON; the first time it waits to be killed.
"""

from __future__ import annotations

import json
import sys

import ray
from ray import tune
from ray.cluster_utils import Cluster

from tests.local import trainables
from tune_sync import RunConfig, SyncConfig, restore_or_start

PAUSE_S, STEPS = 0.2, 10_000


def main() -> None:
    storage, staging_dir = sys.argv[1:]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    cluster.add_node(num_cpus=2)  # trials run there: on the driver's node nothing is staged
    ray.init(address=cluster.address, log_to_driver=False)
    tuner = restore_or_start(
        trainables.paced,
        param_space={"steps": STEPS, "pause_s": PAUSE_S, "n": tune.grid_search([0, 1])},
        run_config=RunConfig(
            name="x", storage_path=storage, verbose=0,
            sync_config=SyncConfig(wait_for="staged", staging_dir=staging_dir),
        ),
        resume_errored=True, refill=True,
    )  # fmt: skip
    results = tuner.fit()
    assert not results.errors, results.errors
    told = [
        {"resumed_at": r.metrics["resumed_at"], "step": r.metrics["step"],
         "steps": [m["step"] for _, m in r.best_checkpoints]}
        for r in results
    ]  # fmt: skip
    print("RESULT", json.dumps(told))


if __name__ == "__main__":
    main()
