"""Runs on the driver's host: a Tune run whose one trial, on the worker, sends what it is told.

    python -m benchmarks.new_ray WORKER

Answers orders {"path": "get"|"report"|"ours"|"syncer", "directory": ..., "total_bytes": ...}.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.fs as pafs
import ray
from ray import tune

import tune_sync
from benchmarks.cases import free_large_files
from benchmarks.desk import Desk, trial_handler
from benchmarks.orders import serve
from tune_sync import layout
from tune_sync.syncers.object_store import ObjectStoreSyncer

EXPERIMENT = "bench"
DESK = "bench-desk"
ARRAY_BYTES = 64 << 20
PUBLISH_TIMEOUT_S = 60.0


class RawSource:
    """On the worker: puts arrays into its object store, for the limit of `ray.get`."""

    def __init__(self) -> None:
        self._array = np.random.default_rng(1).integers(0, 256, ARRAY_BYTES, dtype=np.uint8)

    def put(self, total_bytes: int) -> list[Any]:
        """References to arrays of together `total_bytes`, each of at most 64 MiB."""
        starts = range(0, total_bytes, ARRAY_BYTES)
        return [ray.put(self._array[: total_bytes - start]) for start in starts]


def trial(config: dict[str, Any]) -> None:
    """Carry out orders until there is one without a directory."""
    desk = ray.get_actor(DESK)
    reported_count = synced_count = 0
    while directory := (order := ray.get(desk.next.remote())).get("directory"):
        start_s = time.time()
        if order["path"] == "syncer":
            trial_dir = Path(tune.get_context().get_trial_dir()).name
            key = f"{trial_dir}/checkpoint_{900_000 + synced_count:06d}"
            _sync_up(directory, key)
            synced_count += 1
        else:
            kind = tune.Checkpoint if order["path"] == "report" else tune_sync.Checkpoint
            tune.report({"step": 1}, checkpoint=kind.from_directory(directory))
            key = f"checkpoint_{reported_count:06d}"
            reported_count += 1
        answer = {"start_s": start_s, "blocked_s": time.time() - start_s, "key": key}
        ray.get(desk.done.remote(answer))


def _sync_up(directory: str, key: str) -> None:
    handler = trial_handler()
    remote = f"{handler.experiment_root}/{key}"
    syncer = ObjectStoreSyncer(pafs.PyFileSystem(handler))
    syncer.sync_up(directory, remote)
    syncer.wait()
    handler.publish(remote)


def run_trial(worker: str) -> None:
    """The Tune run; ends when the trial does."""
    run_config = tune_sync.RunConfig(name=EXPERIMENT, verbose=0)
    resources = {"cpu": 1, worker: 1}
    tune.Tuner(tune.with_resources(trial, resources), run_config=run_config).fit()


def main(worker: str) -> None:
    """Start everything, then answer orders."""
    ray.init(log_to_driver=False, namespace=EXPERIMENT)
    desk = ray.remote(num_cpus=0, resources={"head": 0.1})(Desk).options(name=DESK).remote()
    source = ray.remote(num_cpus=0, resources={worker: 0.1})(RawSource).remote()
    experiment = Path("~/ray_results", EXPERIMENT).expanduser()

    def answer(order: dict[str, Any]) -> dict[str, Any]:
        if order["path"] == "get":
            return _measure_get(source, order["total_bytes"])
        done: dict[str, Any] = ray.get(desk.order.remote(order))
        return _published(experiment, done, order["total_bytes"])

    run = threading.Thread(target=run_trial, args=(worker,), daemon=True)
    run.start()
    serve(answer)
    desk.order.remote({})
    run.join(30)


def _measure_get(source: Any, total_bytes: int) -> dict[str, Any]:
    refs = ray.get(source.put.remote(total_bytes))
    ray.wait(refs, num_returns=len(refs), fetch_local=False)
    start_s = time.monotonic()
    arrays = ray.get(refs)
    seconds = time.monotonic() - start_s
    if sum(array.nbytes for array in arrays) != total_bytes:
        raise AssertionError("bytes are missing")
    return {"seconds": seconds}


def _published(experiment: Path, done: dict[str, Any], total_bytes: int) -> dict[str, Any]:
    """Wait for the checkpoint's manifest; its time is when the checkpoint was durable here."""
    pattern = f"{layout.MANIFESTS_DIR}/**/{Path(done['key']).name}.json"
    deadline_s = time.monotonic() + PUBLISH_TIMEOUT_S
    while not (found := list(experiment.glob(pattern))):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{done['key']} was not published")
        time.sleep(0.005)
    seconds = found[0].stat().st_ctime - done["start_s"]
    key = found[0].relative_to(experiment / layout.MANIFESTS_DIR).with_suffix("")
    if free_large_files(experiment / key) != total_bytes:
        raise AssertionError(f"{key} does not hold {total_bytes} bytes")
    return {"seconds": seconds, "blocked_s": done["blocked_s"]}


if __name__ == "__main__":
    main(sys.argv[1])
