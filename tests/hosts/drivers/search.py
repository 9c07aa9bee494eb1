"""A Tune search whose every setting is in one JSON argument; prints what came of it.

Fields of the argument, all optional but ``name``:

- ``name``, ``storage_path``, ``run``: for ``RunConfig``; ``sync``: for ``SyncConfig``, and in it
  ``fast_path``: for ``FastPath``.
- ``trainable``: "train_n" or "TrainN"; ``trials``: the settings of each trial (see
  ``trainables``), with ``host``: where it must run.
- ``checkpoint``: for ``CheckpointConfig``; ``max_failures``; ``reuse_actors``.
- ``restore``: resume this directory in place of starting.
- ``pbt``: steps between perturbations of a ``PopulationBasedTraining``.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from tests.hosts.drivers import trainables
from tune_sync import FastPath, RunConfig, SyncConfig
from tune_sync.fastpath import Tls

INTERNAL = ".tune_sync"


def placed(settings: dict[str, Any]) -> tune.PlacementGroupFactory:
    """One CPU, on the host that the settings name."""
    needs = {"CPU": 1}
    if "host" in settings:
        needs[settings["host"]] = 0.01
    return tune.PlacementGroupFactory([needs])


def trainable_of(spec: dict[str, Any]) -> Any:
    """The trainable with its resources."""
    plain = getattr(trainables, spec.get("trainable", "train_n"))
    return tune.with_resources(plain, lambda config: placed(config["settings"]))


def run_config(spec: dict[str, Any]) -> RunConfig:
    """The run's configuration."""
    return RunConfig(
        name=spec["name"],
        storage_path=spec.get("storage_path"),
        sync_config=sync_config(**spec.get("sync", {})),
        checkpoint_config=tune.CheckpointConfig(**spec.get("checkpoint", {})),
        failure_config=tune.FailureConfig(max_failures=spec.get("max_failures", 0)),
        verbose=1,
        **spec.get("run", {}),
    )


def sync_config(fast_path: dict[str, Any] | None = None, **fields: Any) -> SyncConfig:
    """How results are stored."""
    if fast_path is None:
        return SyncConfig(**fields)
    if "tls" in fast_path:
        fast_path = {**fast_path, "tls": Tls(*map(Path, fast_path["tls"]))}
    return SyncConfig(**fields, fast_path=FastPath(**fast_path))


def tune_config(spec: dict[str, Any]) -> tune.TuneConfig:
    """Concurrency and scheduler."""
    scheduler = None
    if "pbt" in spec:
        scheduler = PopulationBasedTraining(
            time_attr="training_iteration",
            metric="score",
            mode="max",
            perturbation_interval=spec["pbt"],
            quantile_fraction=0.5,
            synch=True,
            hyperparam_mutations={"rate": [0.1, 0.2, 0.3]},
        )
    return tune.TuneConfig(scheduler=scheduler, reuse_actors=spec.get("reuse_actors", False))


def tuner_of(spec: dict[str, Any]) -> tune.Tuner:
    """A new tuner, or the one of an earlier run."""
    if "restore" in spec:
        path = os.path.expanduser(spec["restore"])
        return tune.Tuner.restore(path, trainable_of(spec), resume_errored=True)
    space = {"rate": 0.1, "settings": tune.grid_search(spec["trials"])}
    return tune.Tuner(
        trainable_of(spec),
        param_space=space,
        tune_config=tune_config(spec),
        run_config=run_config(spec),
    )


def describe_checkpoints(trial_dir: Path) -> dict[str, dict[str, Any]]:
    """Checkpoint directory -> its state and digest; every one that is visible must open."""
    found = {}
    for directory in sorted(trial_dir.glob("checkpoint_*")):
        state = trainables.read_checkpoint(directory)
        found[directory.name] = {**state, "digest": trainables.whole_digest(directory)}
    return found


def reported(trial_dir: Path) -> list[dict[str, Any]]:
    """All that the trial has reported, in order."""
    lines = (trial_dir / "result.json").read_text().splitlines()
    wanted = ("step", "node", "digest", "resumed_at", "parent", "loaded_from", "took_s")
    return [{key: row[key] for key in wanted if key in row} for row in map(json.loads, lines)]


def describe_trial(result: Any) -> dict[str, Any]:
    """One trial, as its directory on this host and as its ``Result`` say."""
    directory = Path(result.path)
    opened = None
    if result.checkpoint is not None:
        with result.checkpoint.as_directory() as local:
            opened = {**trainables.read_checkpoint(local), "path": str(local)}
    return {
        "dir": directory.name,
        "id": result.metrics["trial_id"],
        "settings": result.config["settings"],
        "reported": reported(directory),
        "checkpoints": describe_checkpoints(directory),
        "opened": opened,
        "artifacts": sorted(path.name for path in directory.glob("artifact_*")),
    }


def describe_internal(root: Path) -> dict[str, Any]:
    """What tune_sync keeps for itself: published checkpoints, and files that should be gone."""
    manifests = root / INTERNAL / "manifests"
    unfinished = (root / INTERNAL / name for name in ("staging", "incoming", "trash"))
    return {
        "published": sorted(
            str(path.relative_to(manifests))[: -len(".json")] for path in manifests.glob("*/*.json")
        ),
        "leftovers": sorted(
            str(path) for top in unfinished for path in top.rglob("*") if path.is_file()
        ),
    }


def describe(results: tune.ResultGrid) -> dict[str, Any]:
    """What a finished search left on this host."""
    root = Path(results.experiment_path)
    trials = [describe_trial(result) for result in results]
    return {
        "driver": socket.gethostname(),
        "path": str(root),
        "errors": [str(error) for error in results.errors],
        "trials": sorted(trials, key=lambda trial: str(trial["id"])),
        **describe_internal(root),
    }


def main() -> None:
    spec = json.loads(sys.argv[1])
    ray.init(log_to_driver=spec.get("log", False))
    start_s = time.monotonic()
    results = tuner_of(spec).fit()
    seconds = time.monotonic() - start_s
    print("RESULT " + json.dumps({**describe(results), "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
