"""On the driver's host: trials on a worker that report: python -m benchmarks.replicas_reports

Answers orders {"row": …, "source": …}. There is a row of each transport if `FastPath` takes one.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import ray
from ray import tune

import tune_sync
from benchmarks.behind_trial import DRAIN_S, drained
from benchmarks.cases import copy_of, free_large_files
from benchmarks.desk import Desk
from benchmarks.orders import serve
from tune_sync import FastPath

WORKER = "w1"
SHARED_MEMORY = "/dev/shm"
STAGING = "/srv/home/staging"
NOTHING = "nothing"
# For all runs together; of each, one checkpoint stays in memory while the next one is made.
LIMITS = {"memory_limit": 6 << 30, "max_checkpoints_in_memory": 1}


@dataclass(frozen=True, slots=True)
class Kind:
    """How a run's reports are stored.

    Attributes:
        wait_for: For `SyncConfig`.
        is_in_memory: It has a `FastPath`, and makes checkpoints there.
        fast_path: More for `FastPath`.
    """

    wait_for: str
    is_in_memory: bool = False
    fast_path: dict[str, Any] = field(default_factory=dict)

    def sync_config(self) -> tune_sync.SyncConfig:
        """For `RunConfig`."""
        if not self.is_in_memory:
            staging = None if self.wait_for == "stored" else STAGING
            return tune_sync.SyncConfig(wait_for=self.wait_for, staging_dir=staging)
        fast_path = FastPath(**LIMITS, **self.fast_path)
        return tune_sync.SyncConfig(
            wait_for=self.wait_for, staging_dir=STAGING, fast_path=fast_path
        )


CAN_CHOOSE = "transport" in {found.name for found in fields(FastPath)}
REPLICATED = {"replicated": Kind("replicated", True)}
if CAN_CHOOSE:
    REPLICATED = {
        name: Kind("replicated", True, {"transport": name, "required": True})
        for name in ("tcp", "object_store")
    }
KINDS = {
    NOTHING: Kind("stored"),
    "disk": Kind("staged"),
    "memory": Kind("staged", True),
    **REPLICATED,
    "stored": Kind("stored"),
}


@contextmanager
def written(kind: str, source: Path) -> Iterator[Any]:
    """What a trial is about to report; None if it reports nothing."""
    if kind == NOTHING:
        yield None
    elif KINDS[kind].is_in_memory:
        size_bytes = sum(path.stat().st_size for path in source.iterdir())
        with tune_sync.staged_checkpoint(size_bytes) as staged:
            if not str(staged.path).startswith(SHARED_MEMORY):
                raise AssertionError(f"{staged.path} is not in memory")
            copy_of(source, staged.path)
            yield staged.checkpoint
    else:
        with tempfile.TemporaryDirectory(dir=Path.home()) as directory:
            copy_of(source, Path(directory))
            yield tune_sync.Checkpoint.from_directory(directory)


def reports(config: dict[str, Any]) -> None:
    """Report what is ordered, until there is an empty order; tells how long each took."""
    desk = ray.get_actor(config["desk"])
    while order := ray.get(desk.next.remote()):
        with written(config["kind"], Path(order["source"])) as checkpoint:
            os.sync()  # what was written to be reported is nobody's to wait for
            start_s = time.monotonic()
            tune.report({"step": 1}, checkpoint=checkpoint)
            seconds = time.monotonic() - start_s
        ray.get(desk.done.remote({"seconds": seconds}))


class Runs:
    """One run a kind, which stays and reports what is ordered."""

    def __init__(self) -> None:
        self._desks: dict[str, Any] = {}
        self._counts: Counter[str] = Counter()  # of checkpoints, by row

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """Let a kind report once, and wait until it is stored."""
        row, source = order["row"], order["source"]
        name = f"blocks-{row}"
        if row not in self._desks:
            self._start(row, name)
            self._report(row, name, str(Path(source).with_name("tiny")))  # imports, connections
        return self._report(row, name, source)

    def end(self) -> None:
        """Let the runs end."""
        for desk in self._desks.values():
            desk.order.remote({})

    def _start(self, row: str, name: str) -> None:
        options = {"name": name, "num_cpus": 0, "resources": {"head": 0.1}}
        self._desks[row] = ray.remote(Desk).options(**options).remote()
        config = tune_sync.RunConfig(name=name, sync_config=KINDS[row].sync_config(), verbose=0)
        trainable = tune.with_resources(reports, {"cpu": 1, WORKER: 0.1})
        tuner = tune.Tuner(trainable, param_space={"kind": row, "desk": name}, run_config=config)
        threading.Thread(target=tuner.fit, daemon=True).start()

    def _report(self, row: str, name: str, source: str) -> dict[str, Any]:
        done: dict[str, Any] = ray.get(self._desks[row].order.remote({"source": source}))
        if KINDS[row].wait_for != "stored":
            drained(name)
        if KINDS[row].wait_for == "replicated":
            done["transports"] = transports_of(name)
        if row != NOTHING:
            free_large_files(published(name, self._counts[row]))
            self._counts[row] += 1
        return done


def published(name: str, number: int) -> Path:
    """A checkpoint of a run on this host, once it is in its place."""
    end_s = time.monotonic() + DRAIN_S
    while not (found := [*Path("~/ray_results", name).expanduser().glob(f"*/*_{number:06d}")]):
        if time.monotonic() > end_s:
            raise TimeoutError(f"{name}: checkpoint {number} is not published")
        time.sleep(0.02)
    return found[0]


def transports_of(name: str) -> list[str]:
    """How replicas came to the nodes of a run."""
    return sorted({way for node in tune_sync.status(name).nodes for way in node.transports})


def main() -> None:
    """Start Ray, then answer orders."""
    ray.init(log_to_driver=False, namespace="bench")
    runs = Runs()
    serve(runs.answer)
    runs.end()
    os._exit(0)  # all of it ends with this process; nothing is to be kept


if __name__ == "__main__":
    main()
