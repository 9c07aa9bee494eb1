"""Checkpoints of given sizes, from a worker to the driver's node and back to another worker.

Takes one JSON argument:
    {"name": …, "room": a directory of the worker's, for what is made, "sync": as `search` has it,
     "reports": [{"files": [[name, size_bytes, count], …], "ours": bool, "read_back": bool}, …]}
and tells of each report what was sent in how many pieces, how long it took and when, and whether
the same arrived. With `upload_dir` in `sync`, the driver's node fetches each, to compare it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import xxhash
from ray import tune
from ray._private.internal_api import node_stats

import tune_sync
from tests.hosts.drivers.search import sync_config
from tests.hosts.drivers.sent import count_sent

BLOCK_BYTES = 16 << 20
QUIET_S = 2.0  # before what is measured: processes that have just begun are found, and sampled
LOOK_EVERY_S = 0.05


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
    for asked in config["reports"]:
        maker = tune_sync.Checkpoint if asked.get("ours") else tune.Checkpoint
        with tempfile.TemporaryDirectory(dir=os.path.expanduser(config["room"])) as made:
            digests = fill(Path(made), asked["files"])
            time.sleep(QUIET_S)
            with count_sent() as sent:
                start_s = time.time()
                tune.report({"of": "checkpoint"}, checkpoint=maker.from_directory(made))
                end_s = time.time()
        told = {
            "host": os.uname().nodename,
            "window_s": [start_s, end_s],
            "sent_count": sent.count,
            "sent_bytes": sent.size_bytes,
        }
        tune.report({"of": "numbers", "told": json.dumps(told), "digests": json.dumps(digests)})


@ray.remote(num_cpus=1, resources={"w2": 1})
def read_back(checkpoint: tune.Checkpoint, room: str) -> dict[str, Any]:
    time.sleep(QUIET_S)
    start_s = time.time()
    directory = checkpoint.to_directory(tempfile.mkdtemp(dir=os.path.expanduser(room)))
    end_s = time.time()
    digests = digests_of(Path(directory))
    shutil.rmtree(directory)
    return {"host": os.uname().nodename, "window_s": [start_s, end_s], "digests": digests}


def describe(checkpoint: tune.Checkpoint, row: dict[str, Any], asked: dict[str, Any]) -> Any:
    """What the trial told of one report, and what became of it."""
    sent = json.loads(row["digests"])
    with checkpoint.as_directory() as directory:
        equal = digests_of(Path(directory)) == sent
    told = {**json.loads(row["told"]), "equal": equal}
    told["file_count"] = len(sent)
    if asked.get("read_back"):
        back = ray.get(read_back.remote(checkpoint, "/tmp"))
        equal = back.pop("digests") == sent
        told["back"] = {**back, "equal": equal}
    return told


class Stores:
    """The object stores of all nodes, as Ray itself counts: the most at any look.

    Attributes:
        held_bytes: Of one node, what is in use there and can be freed by nobody.
        spilled_bytes: Of one node, what went to its disk.
        looks_count: How often it was looked.
    """

    held_bytes = spilled_bytes = looks_count = 0

    def look(self) -> None:
        for node in ray.nodes():
            at = (node["NodeManagerAddress"], node["NodeManagerPort"])
            stats = node_stats(*at, include_memory_info=False).store_stats
            self.held_bytes = max(self.held_bytes, stats.object_store_bytes_primary_copy)
            self.spilled_bytes = max(self.spilled_bytes, stats.spilled_bytes_total)
        self.looks_count += 1


@contextmanager
def watched_stores() -> Iterator[Stores]:
    """Looked at all the time while the block runs."""
    stores, stop = Stores(), threading.Event()

    def look() -> None:
        while not stop.wait(LOOK_EVERY_S):
            stores.look()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield stores
    finally:
        stop.set()
        thread.join()


def main() -> None:
    asked = json.loads(sys.argv[1])
    ray.init()
    with watched_stores() as stores:
        told = stored(asked)
    found = {
        "home": os.uname().nodename, "reports": told, "held_bytes": stores.held_bytes,
        "spilled_bytes": stores.spilled_bytes, "looks_count": stores.looks_count,
    }  # fmt: skip
    print("RESULT", json.dumps(found))


def stored(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Run the search; returns what is told of each report."""
    tuner = tune.Tuner(
        tune.with_resources(train_fn, {"cpu": 1, "w1": 1}),
        param_space={"reports": asked["reports"], "room": asked.get("room", "/tmp")},
        run_config=tune_sync.RunConfig(
            name=asked["name"], sync_config=sync_config(**asked.get("sync", {}))
        ),
    )
    result = tuner.fit()[0]
    if result.error:
        raise result.error
    with result.filesystem.open_input_stream(f"{result.path}/result.json") as lines:
        rows = [json.loads(line) for line in lines.readall().splitlines()]
    numbers = [row for row in rows if row["of"] == "numbers"]
    checkpoints = [checkpoint for checkpoint, _ in result.best_checkpoints]
    assert len(checkpoints) == len(numbers) == len(asked["reports"])
    told = [describe(*each) for each in zip(checkpoints, numbers, asked["reports"], strict=True)]
    if "upload_dir" not in asked.get("sync", {}):
        shutil.rmtree(result.path)
    return told


if __name__ == "__main__":
    main()
