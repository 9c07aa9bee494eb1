"""Four ranks on two workers report parts of the same checkpoints.

Two runs: "lax" (rank 3 reports late; two steps in which all agree, then 20 in which rank 2
disagrees about ``common.json``) and "strict" (it disagrees, and that is an error). Runs with either
generation of Ray Train.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray import tune

from tests.bed.tree import tree_digest
from tune_sync import RunConfig, SyncConfig, run_config_kwargs

try:  # the second generation
    from ray.train import UserCallback  # noqa: F401
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    IS_V2 = True
except ImportError:
    from ray.train.data_parallel_trainer import DataParallelTrainer

    IS_V2 = False

# Ray Train looks at its workers every two seconds otherwise, and takes one report each time.
QUICK = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1"}
RANKS_COUNT = 4
LATE_S = 2.0
AGREES = {"lax": 2, "strict": 0}  # the first so many steps
STEPS = {"lax": 22, "strict": 1}
DISAGREES = 2


def shard(step: int, rank: int) -> bytes:
    return f"step {step} of rank {rank};".encode() * 4096


def loop(config: dict[str, Any]) -> None:
    rank = ray.train.get_context().get_world_rank()
    for step in range(config["steps"]):
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            (root / f"shard_{rank}.bin").write_bytes(shard(step, rank))
            says = rank if step >= config["agrees"] and rank == DISAGREES else "all"
            (root / "common.json").write_text(json.dumps({"step": step, "says": says}))
            if config["late"] and rank == RANKS_COUNT - 1 and step == 0:
                time.sleep(LATE_S)
                (root / "late.txt").write_text(str(time.time()))
            (root / f"node_{rank}").write_text(socket.gethostname())
            ray.train.report({"step": step}, checkpoint=ray.train.Checkpoint.from_directory(root))


def trainer(mode: str, home: Path) -> tuple[Any, Path]:
    """What has `fit`, and where its checkpoints will appear."""
    sync_config = SyncConfig(strict=mode == "strict")
    keep: dict[str, Any] = {
        "train_loop_per_worker": loop,
        "train_loop_config": {
            "steps": STEPS[mode], "late": mode == "lax", "agrees": AGREES[mode],
        },
        "scaling_config": ray.train.ScalingConfig(
            num_workers=RANKS_COUNT, resources_per_worker={"CPU": 0.4},
            placement_strategy="SPREAD", **({} if IS_V2 else {"trainer_resources": {"CPU": 0}}),
        ),
    }  # fmt: skip
    root = home / "ray_results" / mode
    if IS_V2:
        kwargs = run_config_kwargs(sync_config, name=mode, api="train")
        return DataParallelTrainer(**keep, run_config=ray.train.RunConfig(**kwargs)), root
    config = RunConfig(name=mode, sync_config=sync_config, verbose=0)
    return tune.Tuner(DataParallelTrainer(**keep), run_config=config), root


class Watch(threading.Thread):
    """Notes what is in the first checkpoint when it is first seen, and when."""

    def __init__(self, root: Path) -> None:
        super().__init__(daemon=True)
        self._root = root
        self.seen_s = 0.0
        self.names: list[str] = []

    def run(self) -> None:
        depth = "checkpoint_[0-9]*" if IS_V2 else "*/checkpoint_[0-9]*"
        while not self.seen_s:
            for found in self._root.glob(depth):
                self.names = sorted(os.listdir(found))
                self.seen_s = time.time()
            time.sleep(0.002)


class Lines(logging.Handler):
    """Keeps what is logged in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def logged(here: Lines) -> list[str]:
    """Warnings of conflicts, of this process and of Train's controller, which runs on this host."""
    lines = list(here.lines)
    for log in Path("/tmp/ray").glob("session_2*/logs/worker-*"):
        lines += log.read_text(errors="replace").splitlines()
    return [line for line in lines if "report different bytes" in line]


def outcome(mode: str, here: Lines) -> dict[str, Any]:
    runner, root = trainer(mode, Path.home())
    watch = Watch(root)
    watch.start()
    error = ""
    try:
        fitted = runner.fit()
        error = "" if IS_V2 else "\n".join(str(e) for e in fitted.errors)
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    found = sorted(root.glob("**/checkpoint_*"))
    checkpoints = [c for c in found if c.is_dir() and ".tune_sync" not in c.parts]
    common = [json.loads((c / "common.json").read_text())["says"] for c in checkpoints]
    nodes = {(c / f"node_{r}").read_text() for c in checkpoints for r in range(RANKS_COUNT)}
    shards = [
        (c / f"shard_{r}.bin").read_bytes() == shard(step, r)
        for step, c in enumerate(checkpoints)
        for r in range(RANKS_COUNT)
    ]
    late = [float((c / "late.txt").read_text()) for c in checkpoints if (c / "late.txt").exists()]
    return {
        "error": error,
        "names": [c.name for c in checkpoints],
        "common": common,
        "nodes": sorted(nodes),
        "shards": shards,
        "late_s": late,
        "seen_s": watch.seen_s,
        "seen_names": watch.names,
        "warnings": [line for line in logged(here) if f"/{mode}/" in line],
        "tree": sorted(tree_digest(checkpoints[0])) if checkpoints else [],
        "manifests": len(list(root.glob("**/.tune_sync/manifests/**/*.json"))),
    }


def main() -> None:
    here = Lines()
    logging.getLogger("ray.tune_sync").addHandler(here)
    ray.init(log_to_driver=False, runtime_env={"env_vars": QUICK})
    print("RESULT", json.dumps({mode: outcome(mode, here) for mode in STEPS}))


if __name__ == "__main__":
    main()
