"""Checkpoints of given sizes, from a worker to the driver's node and back to another worker.

Takes one JSON argument:
    {"name": …, "files": [[name, size_bytes, count], …], "kind": "ray" or "ours"}
and tells what was sent in how many pieces, how long it took and when, and what arrived.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import xxhash
from ray import tune

import tune_sync
from tests.hosts.drivers.sent import count_sent

BLOCK_BYTES = 16 << 20


def fill(directory: Path, files: list[tuple[str, int, int]]) -> dict[str, str]:
    """Make the files; returns their digests. No two blocks are alike."""
    block = bytearray(os.urandom(BLOCK_BYTES))
    digests, stamp = {}, 0
    for name, size_bytes, count in files:
        for number in range(count):
            path = directory / name.format(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            digest = xxhash.xxh3_128()
            with path.open("wb") as file:
                left = size_bytes
                while left:
                    stamp += 1
                    block[:8] = stamp.to_bytes(8, "big")
                    piece = memoryview(block)[: min(left, BLOCK_BYTES)]
                    digest.update(piece)
                    left -= file.write(piece)
            digests[str(path.relative_to(directory))] = digest.hexdigest()
    return digests


def digests_of(directory: Path) -> dict[str, str]:
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.name != ".is_checkpoint":
            digest = xxhash.xxh3_128()
            with path.open("rb") as file:
                while piece := file.read(4 << 20):
                    digest.update(piece)
            found[str(path.relative_to(directory))] = digest.hexdigest()
    return found


def train_fn(config: dict[str, Any]) -> None:
    maker = tune.Checkpoint if config["kind"] == "ray" else tune_sync.Checkpoint
    with tempfile.TemporaryDirectory() as made:
        digests = fill(Path(made), config["files"])
        time.sleep(0.3)  # the sampler sees the memory before
        with count_sent() as sent:
            start_s = time.time()
            tune.report({"done": 0}, checkpoint=maker.from_directory(made))
            end_s = time.time()
    tune.report(
        {
            "done": 1,
            "host": os.uname().nodename,
            "digests": json.dumps(digests, sort_keys=True),
            "window_s": [start_s, end_s],
            "sent_count": sent.count,
            "sent_bytes": sent.size_bytes,
        }
    )


@ray.remote(num_cpus=1, resources={"w2": 1})
def read_back(checkpoint: tune.Checkpoint) -> dict[str, Any]:
    time.sleep(0.3)
    start_s = time.time()
    directory = checkpoint.to_directory(tempfile.mkdtemp())
    end_s = time.time()
    digests = digests_of(Path(directory))
    shutil.rmtree(directory)
    return {"host": os.uname().nodename, "digests": digests, "window_s": [start_s, end_s]}


def main() -> None:
    asked = json.loads(sys.argv[1])
    ray.init()
    tuner = tune.Tuner(
        tune.with_resources(train_fn, {"cpu": 1, "w1": 1}),
        param_space={"files": asked["files"], "kind": asked["kind"]},
        run_config=tune_sync.RunConfig(name=asked["name"], sync_config=tune_sync.SyncConfig()),
    )
    result = tuner.fit()[0]
    if result.error:
        raise result.error
    assert result.checkpoint is not None
    metrics = result.metrics
    arrived = digests_of(Path(result.checkpoint.path))
    back = ray.get(read_back.remote(result.checkpoint)) if asked.get("read_back") else None
    sent = json.loads(metrics["digests"])
    print(
        "RESULT",
        json.dumps(
            {
                "host": metrics["host"],
                "home": os.uname().nodename,
                "equal": arrived == sent,
                "file_count": len(arrived),
                "window_s": metrics["window_s"],
                "sent_count": metrics["sent_count"],
                "sent_bytes": metrics["sent_bytes"],
                "back": back and {**back, "digests": None, "equal": back["digests"] == sent},
                "spilled": "Spilled" in ray._private.internal_api.memory_summary(stats_only=True),
            }
        ),
    )


if __name__ == "__main__":
    main()
