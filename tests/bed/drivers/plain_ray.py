"""A search on plain Ray with nothing of this package: shows what Ray alone does on these hosts."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray import tune


def train(config: dict[str, Any]) -> None:
    """Report one checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "weights").write_bytes(os.urandom(1000))
        tune.report({"score": config["x"]}, checkpoint=tune.Checkpoint.from_directory(folder))


def main() -> None:
    """Run the search on a worker host and report each trial's error."""
    ray.init(log_to_driver=False)
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1, "w1": 1}),
        param_space={"x": 1},
        run_config=tune.RunConfig(name="plain", verbose=0),
    )
    results = tuner.fit()
    print("RESULT " + json.dumps({"errors": [str(e) for e in results.errors]}))


if __name__ == "__main__":
    main()
