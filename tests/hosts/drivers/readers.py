"""Eight actors on one worker open the checkpoint that a trial on the other worker reported."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray import tune

import tune_sync
from tests.bed.tree import tree_digest
from tests.hosts.drivers.trainables import train_n, whole_digest
from tune_sync import RunConfig

READERS_COUNT = 8
READS_COUNT = 20
BLOB_BYTES = 8 << 20
# A copy is quick, and a busy machine may look too late.
TRIES_COUNT, HALFWAY_S = 10, 5.0


@ray.remote(num_cpus=0, resources={"w2": 0.01}, max_concurrency=2)
class Reader:
    """Opens a checkpoint and reads it again and again while others open it too."""

    def ready(self) -> tuple[str, int]:
        return socket.gethostname(), os.getpid()

    def partial(self) -> list[str]:
        return partial()

    def stop_halfway(self, pid: int) -> list[str]:
        """Stop a reader in the middle of its copy; returns where that is, or nothing."""
        end_s = time.monotonic() + HALFWAY_S
        while time.monotonic() < end_s:
            if partial():
                os.kill(pid, signal.SIGSTOP)
                if found := partial():
                    return found
                os.kill(pid, signal.SIGCONT)
        return []

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def read(self, checkpoint: tune.Checkpoint, wait_s: float) -> dict[str, Any]:
        time.sleep(wait_s)
        with checkpoint.as_directory() as directory:
            digests = [whole_digest(directory) for _ in range(READS_COUNT)]
            return {"digests": digests, "directory": directory}


def partial() -> list[str]:
    """Where copies are that have begun and are not complete."""
    found = []
    for blob in Path("/tmp").glob("checkpoint_tmp_*/blob.bin"):
        with suppress(FileNotFoundError):  # it was removed just now
            found += [str(blob.parent)] if blob.stat().st_size < BLOB_BYTES else []
    return found


def gather(refs: list[Any]) -> list[dict[str, Any]]:
    done = []
    for ref in refs:
        try:
            done.append(ray.get(ref, timeout=120))
        except ray.exceptions.RayActorError as error:
            done.append({"died": type(error).__name__})
    return done


def main() -> None:
    ray.init(log_to_driver=False)
    results = tune.Tuner(
        tune.with_resources(train_n, {"cpu": 1, "w1": 1}),
        param_space={"settings": {"steps": 1, "blob_bytes": BLOB_BYTES}},
        run_config=RunConfig(name="readers", verbose=0),
    ).fit()
    (result,) = results
    checkpoint = result.checkpoint
    readers = [Reader.remote() for _ in range(READERS_COUNT)]
    where = ray.get([reader.ready.remote() for reader in readers])
    refs = [r.read.remote(checkpoint, 0.3 * n / 7) for n, r in enumerate(readers)]
    together = gather(refs)

    # The first one dies in the middle of its download, the others begin before and after that.
    pid, begun = where[0][1], list[str]()
    for _ in range(TRIES_COUNT):
        first = readers[0].read.remote(checkpoint, 0)
        begun = ray.get(readers[1].stop_halfway.remote(pid))
        if begun:
            break
        ray.get(first)
    refs = [r.read.remote(checkpoint, 0.05 * n) for n, r in enumerate(readers[1:])]
    ray.get(readers[1].kill.remote(pid))
    after_death = gather([first, *refs])
    left = ray.get(readers[1].partial.remote())

    copies = []
    for number, kind in enumerate((tune.Checkpoint, tune_sync.Checkpoint)):
        plain = kind(path=checkpoint.path, filesystem=checkpoint.filesystem)
        copies.append(str(tune_sync.fetch(plain, f"/tmp/copy-{number}")))
    print(
        "RESULT",
        json.dumps(
            {
                "node": result.metrics["node"],
                "digest": result.metrics["digest"],
                "where": where,
                "together": together,
                "after_death": after_death,
                "begun": begun,
                "left": left,
                "copies": [tree_digest(copy) == tree_digest(checkpoint.path) for copy in copies],
            }
        ),
    )


if __name__ == "__main__":
    main()
