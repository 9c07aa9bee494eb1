"""Results in a bucket: every worker writes there itself, and a new cluster goes on from its URL.

    python -m examples.bucket s3://bucket/path    # or gs://, abfs://, root://

Where it ran before, it is refused: give it another path. Credentials and endpoint come from the
environment (`AWS_ACCESS_KEY_ID`, …), which every node of a cluster needs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from ray import tune

from tune_sync import RunConfig, SyncConfig

STEPS = 3


def train_fn(config: dict[str, Any]) -> None:
    checkpoint, first = tune.get_checkpoint(), 0
    if checkpoint:
        with checkpoint.as_directory() as folder:
            first = int(Path(folder, "step.txt").read_text()) + 1
    for step in range(first, STEPS):
        if step == 2 and not checkpoint:
            raise RuntimeError("the machine broke")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step.txt").write_text(str(step))
            result = {"score": config["rate"] * step, "step": step, "resumed_at": first}
            tune.report(result, checkpoint=tune.Checkpoint.from_directory(folder))


def main(url: str) -> None:
    tuner = tune.Tuner(
        train_fn,
        param_space={"rate": tune.grid_search([0.1, 0.2])},
        run_config=RunConfig(name="exp", verbose=0, sync_config=SyncConfig(upload_dir=url)),
    )
    print("first run:", *(result.error for result in tuner.fit()), sep="\n  ")

    # Nothing of the first run is needed but the bucket.
    again = tune.Tuner.restore(f"{url}/exp", trainable=train_fn, resume_errored=True).fit()
    for result in again:
        print("restored:", result.metrics["resumed_at"], "to", result.metrics["step"])
        assert (result.metrics["resumed_at"], result.metrics["step"]) == (2, STEPS - 1)
    best = again.get_best_result("score", "max")
    with best.checkpoint.as_directory() as folder:
        print("best:", best.checkpoint.path, Path(folder, "step.txt").read_text())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m examples.bucket s3://bucket/path")
    main(sys.argv[1])
