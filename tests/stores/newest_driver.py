"""A search whose driver may be killed when the last report of its trial has returned.

Arguments: the URL, the directory for notes, how many steps. A note is made after the last report.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from ray import tune

from tests.stores.steps import first_step
from tune_sync import RunConfig, SyncConfig


def counts(config: dict[str, Any]) -> None:
    """All steps, then it waits to be killed; once it is resumed, one step more."""
    first = first_step()
    for step in range(first, first + 1 if first else config["steps"]):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step))
            checkpoint = tune.Checkpoint.from_directory(folder)
            tune.report({"step": step, "resumed_at": first}, checkpoint=checkpoint)
    Path(config["notes"], "reported").touch()
    while not first:
        time.sleep(1.0)


def main(url: str, notes: str, steps: str) -> None:
    upload_dir, _, name = url.rpartition("/")
    ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=100_000_000)
    config = RunConfig(name=name, verbose=0, sync_config=SyncConfig(upload_dir=upload_dir))
    tune.Tuner(counts, param_space={"notes": notes, "steps": int(steps)}, run_config=config).fit()


if __name__ == "__main__":
    main(*sys.argv[1:])
