"""A Tune run whose one trial moves what it is told: python -m benchmarks.bucket_trial KIND ENDPOINT

KIND is "ours" (tune_sync), "ray" (Ray's own path) or "s3fs" (Ray's, through s3fs). Answers orders
{"way": "up"|"down"|"search", "directory": …, "case": …, "ours": …}.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import ray
from ray import tune

import tune_sync
from benchmarks.bucket_place import BUCKET, our_options, ray_uri, set_environment
from benchmarks.desk import Desk, trial_handler
from benchmarks.orders import serve
from benchmarks.peak import forget_peak, now_bytes, peak_bytes
from tune_sync.run_filesystem import RunFileSystem

DESK = "bench-desk"
STORE_BYTES = 256 << 20
TRIALS_COUNT = 8
CHECKPOINTS_COUNT = 10


def s3fs_filesystem(endpoint: str) -> pafs.FileSystem:
    """s3fs, as one gives it to Ray."""
    import s3fs

    return pafs.PyFileSystem(pafs.FSSpecHandler(s3fs.S3FileSystem(endpoint_url=endpoint)))


def run_config(kind: str, endpoint: str, name: str) -> Any:
    """How a run of this kind is configured."""
    if kind == "ours":
        where = tune_sync.SyncConfig(
            upload_dir=f"s3://{BUCKET}/ours", storage_options=our_options(endpoint)
        )
        return tune_sync.RunConfig(name=name, sync_config=where, verbose=0)
    if kind == "ray":
        return tune.RunConfig(name=name, storage_path=ray_uri(endpoint, "ray"), verbose=0)
    return tune.RunConfig(
        name=name, storage_path=f"{BUCKET}/s3fs", storage_filesystem=s3fs_filesystem(endpoint),
        verbose=0,
    )  # fmt: skip


def trial(config: dict[str, Any]) -> None:
    """Carry out orders until there is an empty one."""
    desk = ray.get_actor(DESK)
    last: dict[str, int] = {}
    count = idle_bytes = 0
    while order := ray.get(desk.next.remote()):
        forget_peak()
        start_s = time.monotonic()
        if order["way"] == "up":
            kind = tune_sync.Checkpoint if order["ours"] else tune.Checkpoint
            tune.report({"step": count}, checkpoint=kind.from_directory(order["directory"]))
            last[order["case"]], count = count, count + 1
        else:
            filesystem, path = _stored(config, last[order["case"]])
            tune.Checkpoint(path, filesystem).to_directory(order["directory"])
        seconds = time.monotonic() - start_s
        idle_bytes = idle_bytes or now_bytes()  # the first order only brings up what is needed
        ray.get(desk.done.remote({"seconds": seconds, "extra_bytes": peak_bytes() - idle_bytes}))


def _stored(config: dict[str, Any], number: int) -> tuple[pafs.FileSystem, str]:
    """A checkpoint of this trial where it is kept, as Ray gives it to a trial that resumes."""
    trial_dir = Path(tune.get_context().get_trial_dir()).name
    inner = f"{config['name']}/{trial_dir}/checkpoint_{number:06d}"
    kind, endpoint = config["kind"], config["endpoint"]
    if kind == "ours":
        handler = trial_handler()
        return RunFileSystem(handler), f"{BUCKET}/ours/{inner}"
    if kind == "s3fs":
        return s3fs_filesystem(endpoint), f"{BUCKET}/s3fs/{inner}"
    filesystem, root = pafs.FileSystem.from_uri(ray_uri(endpoint, "ray"))
    return filesystem, f"{root}/{inner}"


def searched(config: dict[str, Any]) -> None:
    """One trial of a search: reports checkpoints, and how long that took it."""
    blocked_s = 0.0
    kind = tune_sync.Checkpoint if config["ours"] else tune.Checkpoint
    for step in range(CHECKPOINTS_COUNT):
        start_s = time.monotonic()
        checkpoint = kind.from_directory(config["directory"])
        tune.report({"step": step, "blocked_s": blocked_s}, checkpoint=checkpoint)
        blocked_s += time.monotonic() - start_s


def search(kind: str, endpoint: str, name: str, order: dict[str, Any]) -> dict[str, Any]:
    """A whole run of several trials; returns how long it took, and a trial was blocked."""
    space = {"directory": order["directory"], "ours": order["ours"], "number": None}
    space["number"] = tune.grid_search(list(range(TRIALS_COUNT)))
    start_s = time.monotonic()
    tuner = tune.Tuner(searched, param_space=space, run_config=run_config(kind, endpoint, name))
    grid = tuner.fit()
    seconds = time.monotonic() - start_s
    if grid.errors or len(grid) != TRIALS_COUNT:
        raise AssertionError(grid.errors)
    blocked_s = sum(result.metrics["blocked_s"] for result in grid) / len(grid)
    return {"seconds": seconds, "blocked_s": blocked_s}


def main(kind: str, endpoint: str) -> None:
    """Start everything, then answer orders."""
    set_environment(endpoint)
    ray.init(
        num_cpus=TRIALS_COUNT + 1, object_store_memory=STORE_BYTES, include_dashboard=False,
        log_to_driver=False, namespace="bench", _temp_dir=tempfile.mkdtemp(prefix="ts-bench-"),
    )  # fmt: skip
    desk = ray.remote(num_cpus=0)(Desk).options(name=DESK).remote()
    config = {"kind": kind, "endpoint": endpoint, "name": "moves"}
    tuner = tune.Tuner(trial, param_space=config, run_config=run_config(kind, endpoint, "moves"))
    run = threading.Thread(target=tuner.fit, daemon=True)
    numbers = iter(range(1_000_000))

    def answer(order: dict[str, Any]) -> dict[str, Any]:
        if order["way"] == "search":
            return search(kind, endpoint, f"search-{next(numbers)}", order)
        if not run.ident:
            run.start()
        done: dict[str, Any] = ray.get(desk.order.remote(order))
        return done

    serve(answer)
    desk.order.remote({})
    os._exit(0)  # all of it ends with this process; nothing is to be kept


if __name__ == "__main__":
    main(*sys.argv[1:])
