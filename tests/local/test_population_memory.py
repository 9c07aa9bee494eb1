"""Population Based Training in memory: a clone maps what the other trial has left there."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from tests.hosts.searches import wait_for
from tests.local.test_fast_path import io_bytes, shm, staged_in
from tune_sync import RunConfig, SyncConfig, staged_checkpoint

__all__ = ["shm"]  # a fixture

STEPS, INTERVAL = 4, 2
RATES = [0.1, 0.2]
LARGE_BYTES = 16 << 20


def loop(config: dict[str, Any]) -> None:
    """All begin together: one that ends before another one begins is not cloned.

    What is reported names the file in memory that holds it.
    """
    trial, first = tune.get_context().get_trial_id(), 0
    found = tune.get_checkpoint()
    if found is not None:
        before_bytes = io_bytes()
        with found.as_directory() as directory:
            seen: dict[str, Any] = {"directory": directory}
            seen["moved_bytes"] = io_bytes() - before_bytes
            large, state = Path(directory, "large"), Path(directory, "state").read_text()
            seen |= {"inode": large.stat().st_ino, "came_from": json.loads(state)}
            assert large.read_bytes() == body(trial=seen["came_from"]["trial"])
        first = seen["came_from"]["step"] + 1
        name = f"{trial}_{first}_{uuid.uuid4().hex}"
        Path(config["notes"], name).write_text(json.dumps({"trial": trial, **seen}))
    else:
        Path(config["begun"], trial).touch()
        wait_for(lambda: len(os.listdir(config["begun"])) == len(RATES), "the others")
    for step in range(first, STEPS):
        with staged_checkpoint(LARGE_BYTES + (1 << 16)) as staged:
            large = staged.path / "large"
            large.write_bytes(body(trial))
            state = {"trial": trial, "step": step, "inode": large.stat().st_ino}
            (staged.path / "state").write_text(json.dumps(state))
            metrics = {"step": step, "score": step + 100 * config["rate"]}
            tune.report(metrics, checkpoint=staged.checkpoint)


def body(trial: str) -> bytes:
    return trial.encode().ljust(1024) * (LARGE_BYTES // 1024)


def test_a_clone_maps_what_the_other_trial_has_in_memory(
    local_ray: None, tmp_path: Path, shm: Path
) -> None:
    begun, notes = tmp_path / "begun", tmp_path / "notes"
    begun.mkdir()
    notes.mkdir()
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration", metric="score", mode="max", quantile_fraction=0.5,
        perturbation_interval=INTERVAL, hyperparam_mutations={"rate": RATES},
        resample_probability=0.0, synch=True,
    )  # fmt: skip
    sync = SyncConfig(
        upload_dir=tmp_path / "far", wait_for="staged", staging_dir=tmp_path / "staging",
        fast_path=staged_in(shm, max_checkpoints_in_memory=2 * STEPS),
    )  # fmt: skip
    tuner = tune.Tuner(
        loop, tune_config=tune.TuneConfig(scheduler=scheduler),
        param_space={
            "rate": tune.grid_search(RATES), "begun": str(begun), "notes": str(notes),
        },
        run_config=RunConfig(name="x", sync_config=sync, verbose=0),
    )  # fmt: skip
    results = tuner.fit()
    assert not results.errors
    resumed = [json.loads(note.read_text()) for note in notes.iterdir()]
    assert any(seen["came_from"]["trial"] != seen["trial"] for seen in resumed), "no exploit"
    for seen in resumed:
        assert seen["directory"].startswith(str(shm)), "it was copied"
        assert seen["inode"] == seen["came_from"]["inode"], "it was copied"
        assert seen["moved_bytes"] < LARGE_BYTES / 8, "bytes of it were moved"
