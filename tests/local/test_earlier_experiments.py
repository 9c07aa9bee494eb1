"""What nodes have left of an experiment that had the same place before is not for this one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ray import tune

from tests.local.trainables import FAILS_AT, STEPS, stumbles
from tests.unit.test_left_behind import NODE, OWNER, NoAgent
from tests.unit.test_node_sender import report
from tune_sync import RunConfig, SyncConfig, layout
from tune_sync.behind.left_behind import Claim
from tune_sync.behind.staging_home import StagingHome
from tune_sync.homes.home import LocalHome

LATER = f"same/{layout.checkpoint_name(STEPS)}"


def begin(storage: Path, staging: Path) -> str:
    """Start it, beside what is there; returns the experiment's id."""
    name_trial = {"trial_dirname_creator": lambda trial: "same"}
    sync_config = SyncConfig(wait_for="staged", staging_dir=staging)
    config = RunConfig(
        name="x", storage_path=storage, sync_config=sync_config, overwrite=True, verbose=0
    )
    tuner = tune.Tuner(stumbles, run_config=config, tune_config=tune.TuneConfig(**name_trial))
    (result,) = tuner.fit()
    assert result.metrics["step"] == FAILS_AT - 1
    return json.loads((storage / "x" / layout.EXPERIMENT_KEY).read_text())["begun_by"]


def leave(staging: Path, where: Path, begun_by: str) -> Path:
    """What a node that crashed has of a checkpoint of the experiment, with a trial of that name."""
    root = staging / OWNER / NODE
    report(StagingHome(LocalHome(staging / "away"), root, NoAgent(), NODE), LATER, b"of a dead run")
    Claim(root, str(where), begun_by)  # its lock goes with it, as with its process
    return root


@pytest.mark.lowest_slow
def test_a_restore_takes_what_is_left_of_its_own_experiment_alone(
    local_ray: None, tmp_path: Path
) -> None:
    storage, staging = tmp_path / "results", tmp_path / "staging"
    moved_aside, now = begin(storage, staging), begin(storage, staging)
    assert moved_aside != now
    left = leave(staging, storage / "x", moved_aside)
    path = str(storage / "x")
    (result,) = tune.Tuner.restore(path, trainable=stumbles, resume_errored=True).fit()
    assert result.metrics["step"] == STEPS - 1
    assert left.exists()
    assert not (storage / "x" / LATER).exists()
    assert json.loads((storage / "x" / layout.EXPERIMENT_KEY).read_text())["begun_by"] == now
