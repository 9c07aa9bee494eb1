"""A search through Ray Client from a machine outside the cluster, and `fetch` of its best.

Arguments: the address for `ray.init`, the search (see `search`), a directory for the copy.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import ray
from ray import tune

from tests.hosts.drivers import search, trainables
from tune_sync import fetch


def train(config: dict[str, Any]) -> None:
    """Of this script, so pickled whole; of a function pickled by name the resources get lost."""
    trainables.train_n(config)


def connect(address: str) -> None:
    """Ray gives its server for a client 30 s to start, and does not try again."""
    try:
        ray.init(address)
    except ConnectionError:
        ray.init(address)


def main() -> None:
    address, spec, target = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
    connect(address)
    tuner = tune.Tuner(
        tune.with_resources(train, lambda config: search.placed(config["settings"])),
        param_space={"settings": tune.grid_search(spec["trials"])},
        run_config=search.run_config(spec),
    )
    results = tuner.fit()
    del tuner  # the run's own home agent ends with it
    best = results.get_best_result("score", "max")
    copy = fetch(best.checkpoint, target)
    found = {
        "driver": socket.gethostname(),
        "errors": [str(error) for error in results.errors],
        "best": {key: best.metrics[key] for key in ("node", "step", "digest")},
        "path": best.path,
        "path_is_here": os.path.exists(best.path),
        "digest": trainables.whole_digest(copy),
        "state": trainables.read_checkpoint(copy),
        "left": sorted(entry.name for entry in copy.parent.iterdir()),
    }
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
