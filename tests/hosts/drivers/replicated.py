"""A run whose reports return once a second host has the checkpoint, too; it stores in a bucket.

Trials, or ranks of Ray Train, note each report that has returned in a directory that outlives
their hosts. Prints what is in the bucket at the end, as anybody would read it there.

Fields of the one JSON argument: ``name``; ``steps``; ``fast_path``: for ``FastPath``. Optional:

- ``sync``: for ``SyncConfig``; ``max_failures``.
- ``ranks``: how many of Ray Train, in place of a trial; ``host``: where the trial must run.
- ``blob_bytes``; ``pause_s``.
- ``fail_at``: raise before this step, unless it is the first after a resume; ``hold_at``: go on
  with this step only after a resume.
- ``restore``: resume the run of this name in place of starting it.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray import tune

import tune_sync
from tests.hosts.drivers.bucket import keys_below, plain_s3
from tune_sync import FastPath, RunConfig, SyncConfig

FIRST_GENERATION = {"RAY_TRAIN_V2_ENABLED": "0"}  # of Ray Train; for drivers, too
NOTES = Path("/srv/notes")
MEMORY = Path("/dev/shm")
URL = "s3://bucket/results"
MANIFESTS = ".tune_sync/manifests/"


def note(name: str, **fields: Any) -> None:
    """One line in one write: whoever is killed leaves no half of it."""
    line = json.dumps({"host": socket.gethostname(), **fields}) + "\n"
    with (NOTES / f"{name}.jsonl").open("a") as notes:
        notes.write(line)


def write_part(directory: Path, rank: int, step: int, size_bytes: int) -> str:
    """What one rank reports; returns the digest of its bytes."""
    data = os.urandom(size_bytes)
    (directory / f"blob_{rank}.bin").write_bytes(data)
    (directory / f"step_{rank}.json").write_text(json.dumps(step))
    return hashlib.sha256(data).hexdigest()


def staged_inodes(step: int, rank: int) -> list[int]:
    """Files of a checkpoint in shared memory of this host."""
    inside = f"*/*/*/.tune_sync/staging/*/checkpoint_{step:06d}/*/data/blob_{rank}.bin"
    return [path.stat().st_ino for path in MEMORY.glob(inside)]


def resumed(found: Any, rank: int) -> tuple[int, dict[str, Any]]:
    """The step to go on with, and what was seen of the checkpoint before it."""
    if found is None:
        return 0, {}
    start_s = time.perf_counter()
    with found.as_directory() as directory:
        blob = Path(directory, f"blob_{rank}.bin")
        seen = {"directory": directory, "restore_s": time.perf_counter() - start_s}
        seen |= {"inode": blob.stat().st_ino}
        seen |= {"is_in_memory": blob.stat().st_dev == MEMORY.stat().st_dev}
        seen |= {"digest": hashlib.sha256(blob.read_bytes()).hexdigest()}
        return json.loads(Path(directory, f"step_{rank}.json").read_text()) + 1, seen


def train(spec: dict[str, Any], found: Any, report: Callable[..., None], rank: int = 0) -> None:
    """Go on from a checkpoint; note each report that has returned."""
    name = spec["name"]
    first, seen = resumed(found, rank)
    note(name, event="start", rank=rank, first=first, **seen)
    for step in range(first, spec["steps"]):
        if step == spec.get("fail_at") and step != first:
            raise RuntimeError(f"fails at step {step}, as told to")
        while step == spec.get("hold_at") and not first:
            time.sleep(0.2)
        with tempfile.TemporaryDirectory() as made:
            digest = write_part(Path(made), rank, step, spec.get("blob_bytes", 1_500_000))
            start_s = time.monotonic()
            report({"step": step}, checkpoint=tune_sync.Checkpoint.from_directory(made))
            took_s = time.monotonic() - start_s
        note(name, event="reported", rank=rank, step=step, digest=digest, took_s=took_s,
             inodes=staged_inodes(step, rank))  # fmt: skip
        time.sleep(spec.get("pause_s", 0.2))


class Heard(tune.Callback):
    """Notes what the driver has heard of: a report may have returned before that."""

    def __init__(self, name: str) -> None:
        self._name = name

    def on_checkpoint(self, checkpoint: Any, **info: Any) -> None:
        note(self._name, event="heard", path=checkpoint.path)


def trial(spec: dict[str, Any]) -> None:
    """Of Ray Tune."""
    train(spec, tune.get_checkpoint(), tune.report)


def one_rank(spec: dict[str, Any]) -> None:
    """Of Ray Train."""
    rank = ray.train.get_context().get_world_rank()
    train(spec, ray.train.get_checkpoint(), ray.train.report, rank)


def sync_config(spec: dict[str, Any]) -> SyncConfig:
    return SyncConfig(
        upload_dir=URL, wait_for="replicated", fast_path=FastPath(**spec["fast_path"]),
        **spec.get("sync", {}),
    )  # fmt: skip


def trainable_of(spec: dict[str, Any]) -> Any:
    """One trial, or the ranks of one."""
    if "ranks" not in spec:
        needs = {"CPU": 1, **({spec["host"]: 0.01} if "host" in spec else {})}
        return tune.with_resources(trial, tune.PlacementGroupFactory([needs]))
    # The first generation, which is a trainable: `FIRST_GENERATION` has to be set.
    from ray.train.data_parallel_trainer import DataParallelTrainer

    return DataParallelTrainer(
        one_rank,
        train_loop_config=spec,
        scaling_config=ray.train.ScalingConfig(
            num_workers=spec["ranks"], resources_per_worker={"CPU": 0.5},
            trainer_resources={"CPU": 0}, placement_strategy="SPREAD",
        ),
    )  # fmt: skip


def fit(spec: dict[str, Any]) -> str:
    """Run one trial, or go on with it; returns what went wrong."""
    if "restore" in spec:
        url, trainable = f"{URL}/{spec['name']}", trainable_of(spec)
        (result,) = tune.Tuner.restore(url, trainable, resume_errored=True).fit()
        return str(result.error or "")
    space = {} if "ranks" in spec else spec
    config = RunConfig(
        name=spec["name"], sync_config=sync_config(spec), verbose=0,
        callbacks=[Heard(spec["name"])],
        failure_config=tune.FailureConfig(max_failures=spec.get("max_failures", 0)),
    )  # fmt: skip
    (result,) = tune.Tuner(trainable_of(spec), param_space=space, run_config=config).fit()
    return str(result.error or "")


def in_bucket(root: str) -> dict[str, Any]:
    """Published checkpoint -> rank -> its step, and the digest of its bytes."""
    s3, keys = plain_s3(), keys_below(root)

    def read(key: str) -> bytes:
        return bytes(s3.open_input_file(f"{root}/{key}").readall())

    published: dict[str, dict[str, Any]] = {
        key.removeprefix(MANIFESTS).removesuffix(".json"): {}
        for key in keys
        if key.startswith(MANIFESTS)
    }
    for key in keys:
        checkpoint, _, name = key.rpartition("/")
        if name.startswith("blob_") and checkpoint in published:
            rank = name.removeprefix("blob_").removesuffix(".bin")
            published[checkpoint][rank] = {
                "digest": hashlib.sha256(read(key)).hexdigest(),
                "step": json.loads(read(f"{checkpoint}/step_{rank}.json")),
            }
    left = [key for key in keys if key.startswith((".tune_sync/staging", ".tune_sync/incoming"))]
    return {"published": published, "left": left}


def main() -> None:
    spec = json.loads(sys.argv[1])
    ray.init(log_to_driver=False, runtime_env={"env_vars": FIRST_GENERATION})
    error = fit(spec)
    found = in_bucket(f"{URL.removeprefix('s3://')}/{spec['name']}")
    print("RESULT " + json.dumps({"error": error, **found}), flush=True)


if __name__ == "__main__":
    main()
