"""A search that stages, in a process that may be killed; its settings are one JSON argument.

Fields: `name`, `url`, `options` (`storage_options`), `staging`, `notes`: a directory where each
report is noted that has returned; `address` of a Ray cluster, or none for its own; `restore`;
`sync_timeout`; `last`: the trial ends before this step, unless it is resumed.

The trial reports step 0, waits for the file `go`, reports steps 1 to 3 and waits to be killed.
When it is resumed it waits for `again`, and reports steps 4 and 5. Prints `RESULT` and what came
of it.
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
from tune_sync import RunConfig, SyncConfig, restore_kwargs
from tune_sync.errors import LeaseHeldError, NotStoredError

HOLDS_AT, STEPS = 4, 6


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)


def notes_steps(config: dict[str, Any]) -> None:
    notes, first = Path(config["notes"]), 0
    found = tune.get_checkpoint()
    if found is not None:
        with found.as_directory() as directory:
            first = read_checkpoint(directory)["step"] + 1
        wait_for(notes / "again")
    for step in range(first, STEPS):
        if first == 0 and step == config["last"]:
            return
        if first == 0 and step in (1, HOLDS_AT):
            wait_for(notes / ("go" if step == 1 else "never"))
        with tempfile.TemporaryDirectory() as made:
            write_checkpoint(Path(made), {"blob_bytes": 1 << 20}, {"step": step})
            checkpoint = tune.Checkpoint.from_directory(made)
            tune.report({"step": step, "resumed_at": first}, checkpoint=checkpoint)
        (notes / str(step)).touch()


def tuner_of(spec: dict[str, Any]) -> tune.Tuner:
    if spec.get("restore"):
        place = restore_kwargs(f"{spec['url']}/{spec['name']}", spec["options"])
        return tune.Tuner.restore(trainable=notes_steps, resume_errored=True, **place)
    sync_config = SyncConfig(
        upload_dir=spec["url"], storage_options=spec["options"], wait_for="staged",
        staging_dir=spec["staging"], sync_timeout=spec.get("sync_timeout", 120),
    )  # fmt: skip
    return tune.Tuner(
        notes_steps, param_space={"notes": spec["notes"], "last": spec.get("last", STEPS)},
        run_config=RunConfig(name=spec["name"], sync_config=sync_config, verbose=1),
    )  # fmt: skip


def main() -> None:
    spec = json.loads(sys.argv[1])
    own = {
        "address": "local",
        "num_cpus": 2,
        "include_dashboard": False,
        "object_store_memory": 200_000_000,
    }
    ray.init(**({"address": spec["address"]} if spec["address"] else own))
    try:
        (result,) = tuner_of(spec).fit()
    except LeaseHeldError as error:
        print("RESULT", json.dumps({"held": str(error)}), flush=True)
        return
    except NotStoredError as error:
        print("RESULT", json.dumps({"not_stored": str(error)}), flush=True)
        return
    found = {
        "error": str(result.error or ""), "step": result.metrics["step"],
        "resumed_at": result.metrics["resumed_at"],
    }  # fmt: skip
    print("RESULT", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
