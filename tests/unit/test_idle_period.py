"""Who sets a period by which nothing goes is told so, once the run begins."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import ray.cloudpickle

from tune_sync import CommandSyncer, ObjectStoreSyncer, RunConfig, SyncConfig
from tune_sync.ray_adapter import SyncCallback

OWN = {"syncer": CommandSyncer("cp {source} {target}", "cp {source} {target}", "rm {target}")}
RARE = {"wait_for": "staged", "sync_on_checkpoint": False}


def said_of(given: dict[str, Any], directory: Path) -> str:
    place = {} if "upload_dir" in given else {"storage_path": directory}
    config = RunConfig(name="x", sync_config=SyncConfig(**given), **place)
    (ours,) = (each for each in config.callbacks if isinstance(each, SyncCallback))
    twin = pickle.loads(ray.cloudpickle.dumps(ours))
    assert twin._idle_period == ours._idle_period
    return ours._idle_period


@pytest.mark.parametrize(
    "given", [{"sync_period": 20}, {"sync_period": 20, "wait_for": "staged"},
              {"syncer": ObjectStoreSyncer(sync_period=20)}],
)  # fmt: skip
def test_a_period_by_which_nothing_goes_is_told(given: dict[str, Any], tmp_path: Path) -> None:
    said = said_of(given, tmp_path)
    assert said.startswith("sync_period=20 has no effect")
    assert "sync_artifacts=True" in said and "sync_on_checkpoint=False" in said


@pytest.mark.parametrize(
    "given", [{}, {"sync_period": 300}, {"sync_period": 20, "sync_artifacts": True},
              {"sync_period": 20, **RARE}, {"sync_period": 20, "upload_dir": "there", **OWN}],
)  # fmt: skip
def test_one_that_is_used_or_not_set_is_not(given: dict[str, Any], tmp_path: Path) -> None:
    assert said_of(given, tmp_path) == ""
