"""A trial whose home stops answering while it reports, and answers again later: NAME SYNC_TIMEOUT_S

Steps are agreed on through files in HOME of the trial's host: the trial makes "NAME-ready", waits
for "NAME-stopped", reports, makes "NAME-told", waits for "NAME-continued".
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import xxhash
from ray import tune

import tune_sync

FILE_BYTES = 40 << 20


def wait_for(name: str) -> None:
    deadline_s = time.monotonic() + 60
    while not (Path.home() / name).exists():
        assert time.monotonic() < deadline_s, name
        time.sleep(0.02)


def report(step: int, digests: list[str]) -> None:
    with tempfile.TemporaryDirectory() as made:
        data = os.urandom(FILE_BYTES)
        Path(made, "data.bin").write_bytes(data)
        Path(made, "step").write_text(str(step))
        digests.append(xxhash.xxh3_128_hexdigest(data))
        tune.report(
            {"step": step, "digests": json.dumps(digests), "host": os.uname().nodename},
            checkpoint=tune.Checkpoint.from_directory(made),
        )


def train_fn(config: dict[str, Any]) -> None:
    digests: list[str] = []
    report(0, digests)
    name = config["name"]
    (Path.home() / f"{name}-ready").touch()
    wait_for(f"{name}-stopped")
    start_s = time.monotonic()
    try:
        report(1, digests)
    except Exception as error:
        told = {"type": type(error).__name__, "text": str(error)}
    else:
        told = {"type": "none", "text": ""}
    told["seconds"] = time.monotonic() - start_s
    (Path.home() / f"{name}-told").touch()
    wait_for(f"{name}-continued")
    time.sleep(1.5)  # what was under way arrives late
    report(2, digests)
    tune.report({"step": 3, "told": json.dumps(told), "digests": json.dumps(digests)})


def main() -> None:
    name, timeout_s = sys.argv[1], float(sys.argv[2])
    ray.init()
    root = Path.home() / "ray_results" / name
    tuner = tune.Tuner(
        tune.with_resources(train_fn, {"cpu": 1, "w1": 1}),
        param_space={"name": name},
        run_config=tune_sync.RunConfig(
            name=name, sync_config=tune_sync.SyncConfig(sync_timeout=timeout_s)
        ),
    )
    result = tuner.fit()[0]
    if result.error:
        raise result.error
    found = {
        int((path / "step").read_text()): xxhash.xxh3_128_hexdigest(
            (path / "data.bin").read_bytes()
        )
        for path in sorted(Path(result.path).glob("checkpoint_*"))
    }
    staging = (root / ".tune_sync/staging").rglob("*")
    print(
        "RESULT",
        json.dumps(
            {
                "told": json.loads(result.metrics["told"]),
                "digests": json.loads(result.metrics["digests"]),
                "found": found,
                "leftovers": [str(path) for path in staging if path.is_file()],
            }
        ),
    )


if __name__ == "__main__":
    main()
