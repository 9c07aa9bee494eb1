"""What a run was told outlives a restore from wherever its results are: all but secrets."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import ray.cloudpickle
from ray import tune

from tune_sync import FastPath, RunConfig, SyncConfig, restore_kwargs

FIRST = "s3://bucket/runs"
OPTIONS = {"key": "someone", "secret": "kept by nobody", "endpoint_url": "http://127.0.0.1:9"}
# What follows from where results are, or is given again.
OF_PLACES = {"upload_dir", "syncer", "storage_options"}
# None of them as by default; each of the last two goes with the first alone.
ALWAYS: dict[str, Any] = {
    "sync_period": 77.0, "sync_timeout": 66.0, "sync_artifacts": True,
    "sync_artifacts_on_checkpoint": False, "include": ("*.png",), "exclude": ("*.tmp",),
    "strict": True, "staging_dir": "/var/staging", "staging_limit_bytes": 1 << 30,
    "max_bandwidth_bytes_per_s": 1 << 20, "fast_path": FastPath(memory_limit=1 << 28),
}  # fmt: skip
BEHIND = {"wait_for": "staged", "sync_on_checkpoint": False, "max_concurrent_transfers": 5}
STORED = {"on_sync_error": "continue", "max_consecutive_failures": 3, "keep_best": 4}


def begun(told: dict[str, Any]) -> RunConfig:
    score = tune.CheckpointConfig(
        checkpoint_score_attribute="score", checkpoint_score_order="max"
    )  # fmt: skip
    sync = SyncConfig(upload_dir=FIRST, storage_options=OPTIONS, **told)
    return RunConfig(name="exp", sync_config=sync, checkpoint_config=score)


def as_ray_restores(made: RunConfig, given: dict[str, Any]) -> RunConfig:
    """What Ray unpickles, and then tells where it is; see `tune.Tuner.restore`."""
    pickled = ray.cloudpickle.dumps(made)
    assert b"kept by nobody" not in pickled
    restored: RunConfig = ray.cloudpickle.loads(pickled)
    place, _, name = given["path"].rpartition("/")
    restored.name = name
    restored.storage_path = place
    restored.storage_filesystem = given.get("storage_filesystem")
    return restored


def test_every_field_is_tried() -> None:
    usual, told = SyncConfig(), ALWAYS | BEHIND | STORED
    fields = {field.name for field in dataclasses.fields(SyncConfig) if field.init}
    assert fields == told.keys() | OF_PLACES
    assert not [name for name, value in told.items() if getattr(usual, name) == value]


@pytest.mark.parametrize("more", [BEHIND, STORED])
@pytest.mark.parametrize("where", ["there", "moved", "given", "on a disk"])
def test_a_restore_keeps_all_that_the_run_was_told(
    where: str, more: dict[str, Any], tmp_path: Path
) -> None:
    given = {
        "there": {"path": f"{FIRST}/exp"},
        "moved": {"path": "s3://copies/a/exp2"},
        "given": restore_kwargs("s3://copies/a/exp2", OPTIONS),
        "on a disk": {"path": str(tmp_path / "exp")},
    }[where]
    told = ALWAYS | more
    first = begun(told)
    restored = as_ray_restores(first, given)
    assert {name: getattr(restored.sync_config, name) for name in told} == told
    options = restored.sync_config.storage_options
    assert options == (OPTIONS if where == "given" else None)
    handler = restored.storage_filesystem.handler
    assert handler.on_existing == "resume"
    assert handler.spec.options == first.storage_filesystem.handler.spec.options
