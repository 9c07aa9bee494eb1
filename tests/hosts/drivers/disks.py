"""Runs into the limits of a disk: ``full DIR``, ``read_only DIR``, ``not_shared``."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray import tune

from tests.bed.tree import tree_digest
from tests.hosts.drivers.trainables import train_n, whole_digest
from tune_sync import RunConfig, SyncConfig
from tune_sync.errors import NotSharedError

BLOB_BYTES = 20 << 20
STEPS = 4


def fill(config: dict[str, Any]) -> None:
    """Report checkpoints of 20 MiB; one that fails is reported again after the driver knows."""
    for step in range(STEPS):
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "blob").write_bytes(os.urandom(BLOB_BYTES))
            metrics = {
                "step": step, "node": socket.gethostname(), "digest": whole_digest(directory),
                "failed": "",
            }  # fmt: skip
            kind = tune.Checkpoint
            try:
                tune.report(metrics, checkpoint=kind.from_directory(directory))
            except Exception as error:
                tune.report({**metrics, "failed": f"{type(error).__name__}: {error}"})
                tune.report(metrics, checkpoint=kind.from_directory(directory))


class MakeRoom(tune.Callback):  # type: ignore[misc]
    """Removes the ballast when a trial says that a report failed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stored: dict[str, str] = {}
        self.failures: list[dict[str, Any]] = []

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if not result["failed"]:
            self.stored[str(result["step"])] = result["digest"]
            return
        internal = self.root / ".tune_sync"
        places = (internal / "staging", internal / "incoming")
        self.failures.append(
            {
                "text": result["failed"],
                "node": result["node"],
                "staged": [
                    name for place in places for *_, names in os.walk(place) for name in names
                ],
                "digests": digests(self.root),
            }
        )
        (self.root.parent / "ballast").unlink()


def digests(root: Path) -> list[str]:
    return [whole_digest(c) for c in sorted(root.glob("*/checkpoint_*"))]


def full(storage: str) -> dict[str, Any]:
    root = Path(storage, "full")
    callback = MakeRoom(root)
    results = tune.Tuner(
        tune.with_resources(fill, {"cpu": 1, "w1": 1}),
        run_config=RunConfig(name="full", storage_path=storage, callbacks=[callback], verbose=0),
    ).fit()
    return {
        "errors": [str(error) for error in results.errors],
        "stored": callback.stored, "failures": callback.failures, "digests": digests(root),
        "names": [c.name for c in sorted(root.glob("*/checkpoint_*"))],
        "manifests": len(list((root / ".tune_sync/manifests").rglob("*.json"))),
        "staged": [str(p) for p in (root / ".tune_sync").glob("staging/**/*")],
    }  # fmt: skip


def read_only(storage: str) -> dict[str, Any]:
    before = tree_digest(storage)
    refusals = []
    for name in ("named", None):
        try:
            tune.Tuner(train_n, run_config=RunConfig(name=name, storage_path=storage))
        except Exception as error:
            refusals.append(f"{type(error).__name__}: {error}")
    return {"refusals": refusals, "unchanged": tree_digest(storage) == before}


def not_shared() -> dict[str, Any]:
    tuner = tune.Tuner(
        tune.with_resources(train_n, {"cpu": 1, "w1": 1}),
        param_space={"settings": {"steps": 1}},
        run_config=RunConfig(name="alone", sync_config=SyncConfig(syncer=None), verbose=0),
    )
    nodes = {node["NodeManagerHostname"]: node["NodeID"] for node in ray.nodes()}
    try:
        tuner.fit()
    except NotSharedError as error:
        return {"error": str(error), "nodes": nodes}
    return {"error": "", "nodes": nodes}


if __name__ == "__main__":
    ray.init(log_to_driver=False)
    mode, *args = sys.argv[1:]
    found = {"full": full, "read_only": read_only, "not_shared": not_shared}[mode](*args)
    print("RESULT", json.dumps(found))
