"""The same script each time: it starts a search that stages on w1, or resumes it.

`STAGING_DIR`. The trial reports until there is a file `end` in its HOME. Prints what it came to.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from ray import tune

from tests.hosts.drivers.trainables import read_checkpoint, write_checkpoint
from tune_sync import RunConfig, SyncConfig, restore_or_start
from tune_sync.errors import LeaseHeldError

PAUSE_S = 0.2
TRY_AGAIN_S = 2.0


def until_end(config: dict[str, Any]) -> None:
    found, first = tune.get_checkpoint(), 0
    if found is not None:
        with found.as_directory() as directory:
            first = read_checkpoint(directory)["step"] + 1
    step = first
    while step == first or not (Path.home() / "end").exists():
        with tempfile.TemporaryDirectory() as made:
            write_checkpoint(Path(made), {}, {"step": step})
            metrics = {"step": step, "resumed_at": first}
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(made))
        step += 1
        time.sleep(PAUSE_S)


def fit(staging_dir: str) -> tune.ResultGrid:
    sync_config = SyncConfig(wait_for="staged", staging_dir=staging_dir)
    return restore_or_start(
        tune.with_resources(until_end, {"cpu": 1, "w1": 1}),
        run_config=RunConfig(name="x", sync_config=sync_config, verbose=0),
        resume_errored=True, refill=True,
    ).fit()  # fmt: skip


def main() -> None:
    ray.init(log_to_driver=False)
    while True:  # the dead head's lease counts until its heartbeat is old
        try:
            (result,) = fit(sys.argv[1])
        except LeaseHeldError as error:
            print(error, flush=True)
            time.sleep(TRY_AGAIN_S)
        else:
            break
    print("RESULT", json.dumps({**result.metrics, "error": str(result.error or "")}, default=str))


if __name__ == "__main__":
    main()
