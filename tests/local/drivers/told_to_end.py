"""A search with write-behind on a Ray of its own, for which SIGTERM comes: `UPLOAD_DIR`."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from ray import tune

from tune_sync import RunConfig, SyncConfig


def reports_for_ever(config: dict[str, Any]) -> None:
    step = 0
    while True:
        step += 1
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "model").write_text(str(step))
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(folder))
        time.sleep(0.3)


if __name__ == "__main__":
    ray.init("local", num_cpus=1, include_dashboard=False)
    sync = SyncConfig(upload_dir=sys.argv[1], wait_for="staged")
    config = RunConfig(name="x", verbose=0, sync_config=sync)
    tune.Tuner(reports_for_ever, run_config=config).fit()
