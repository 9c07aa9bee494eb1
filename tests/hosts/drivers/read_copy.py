"""Reads a copy of an experiment directory on a machine that is in no cluster.

Argument: the directory.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ray
from ray import tune

from tests.hosts.drivers import search, trainables


def train(config: dict[str, Any]) -> None:
    """Named like the trainable of ``through_client``, whose results are read."""
    raise AssertionError("nothing is trained here")


def main() -> None:
    path = sys.argv[1]
    results = tune.Tuner.restore(path, train).get_results()
    found = search.describe(results)
    analysis = tune.ExperimentAnalysis(path)
    best = analysis.get_best_trial("score", "max")
    with analysis.get_best_checkpoint(best, "score", "max").as_directory() as directory:
        found["best"] = {
            "state": trainables.read_checkpoint(directory),
            "digest": trainables.whole_digest(directory),
        }
    found["ray_is_running"] = ray.is_initialized()
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
