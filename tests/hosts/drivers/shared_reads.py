"""Actors on three hosts open one checkpoint that is stored in a bucket.

Fields of the one JSON argument: ``name``; ``blob_bytes``; ``fast_path``: for ``FastPath``.
``waves``: the hosts that open it at the same time, then those that do once a file is there that is
named as the run and numbered from 1, and so on; each keeps it open to the end.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
from ray import tune

import tune_sync
from tests.hosts.drivers.replicated import MEMORY, URL
from tune_sync import FastPath, RunConfig, SyncConfig

HOSTS = ("w1", "w2", "head")
READERS_COUNT = 3  # on each
READING = Path("/srv/notes")  # a file here, named as the run, is there once they begin


def trial(config: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as made:
        data = os.urandom(config["blob_bytes"])
        Path(made, "blob.bin").write_bytes(data)
        for number in range(20):
            Path(made, f"small_{number}").write_bytes(data[number : number + 1000])
        digest = hashlib.sha256(data).hexdigest()
        tune.report({"digest": digest}, checkpoint=tune_sync.Checkpoint.from_directory(made))


class Reader:
    """Opens it, and keeps it open."""

    def __init__(self) -> None:
        self._opened = ExitStack()

    def ready(self) -> str:
        return socket.gethostname()

    def read(self, checkpoint: tune.Checkpoint, wait_s: float) -> dict[str, Any]:
        time.sleep(wait_s)
        start_s = time.monotonic()
        directory = self._opened.enter_context(checkpoint.as_directory())
        opened_s = time.monotonic() - start_s
        blob = Path(directory, "blob.bin")
        return {
            "host": socket.gethostname(),
            "digest": hashlib.sha256(blob.read_bytes()).hexdigest(),
            "files": len(list(Path(directory).iterdir())),
            "is_in_memory": blob.stat().st_dev == MEMORY.stat().st_dev,
            "inode": blob.stat().st_ino,
            "opened_s": opened_s,
        }


def read_at(host: str) -> list[Any]:
    """Readers on a host, which are there."""
    kind = ray.remote(num_cpus=0, resources={host: 0.001})(Reader)
    readers = [kind.remote() for _ in range(READERS_COUNT)]
    ray.get([reader.ready.remote() for reader in readers])
    return readers


def main(spec: dict[str, Any]) -> None:
    ray.init(log_to_driver=False)
    memory = FastPath(**spec["fast_path"])
    sync = SyncConfig(upload_dir=URL, wait_for="staged", fast_path=memory)
    (result,) = tune.Tuner(
        tune.with_resources(trial, {"cpu": 1, "w1": 0.01}),
        param_space={"blob_bytes": spec["blob_bytes"]},
        run_config=RunConfig(name=spec["name"], sync_config=sync, verbose=0),
    ).fit()
    found: list[dict[str, Any]] = []
    readers = {host: read_at(host) for host in HOSTS}
    for number, wave in enumerate(spec.get("waves", [HOSTS])):
        while number and not (READING / f"{spec['name']}.{number}").exists():
            time.sleep(0.05)
        (READING / spec["name"]).touch()
        now = [reader for host in wave for reader in readers[host]]
        refs = [r.read.remote(result.checkpoint, 0.05 * n) for n, r in enumerate(now)]
        found += ray.get(refs, timeout=120)
        (READING / f"{spec['name']}.{number}.read").touch()
    print("RESULT", json.dumps({"digest": result.metrics["digest"], "found": found}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
