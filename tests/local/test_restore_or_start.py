"""One script that starts an experiment, and resumes it when it is run again."""

from __future__ import annotations

import logging
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tests.hosts.drivers.trainables import read_checkpoint
from tests.local.trainables import STEPS, stumbles
from tests.unit.staged import CHECKPOINT, placed
from tune_sync import RunConfig, SyncConfig, layout, restore_or_start
from tune_sync.errors import (
    ConfigError,
    DamagedError,
    ExperimentExistsError,
    LeaseHeldError,
    StoreError,
    StoreUnreachableError,
)
from tune_sync.run import Run
from tune_sync.syncers.command import CommandSyncer

TIMEOUT_S = 10.0
# Nothing listens there.
NOBODY = {
    "key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9", "region": "us-east-1",
    "request_timeout_s": 1.0, "connect_timeout_s": 1.0,
}  # fmt: skip


def tuner(storage: Path, **fields: Any) -> tune.Tuner:
    config = RunConfig(name="x", storage_path=storage, verbose=0)
    return restore_or_start(stumbles, run_config=config, **fields)


@pytest.mark.lowest
def test_it_starts_then_resumes_then_only_tells(
    local_ray: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ray.tune_sync")
    (first,) = tuner(tmp_path).fit()
    assert first.error is not None
    assert f"{tmp_path}/x: nothing to resume, starting afresh" in caplog.text
    (second,) = tuner(tmp_path, resume_errored=True).fit()
    assert second.error is None
    assert f"{tmp_path}/x: resuming what is there" in caplog.text
    assert second.path == first.path
    with second.checkpoint.as_directory() as directory:
        assert read_checkpoint(directory)["step"] == STEPS - 1
    before = sorted(os.listdir(second.path))
    (third,) = tuner(tmp_path, resume_errored=True).fit()
    assert third.metrics["step"] == STEPS - 1
    assert sorted(os.listdir(third.path)) == before


def test_what_ended_before_anything_was_saved_is_started(local_ray: None, tmp_path: Path) -> None:
    tuner(tmp_path)  # writes tuner.pkl, and is never run
    assert (tmp_path / "x/tuner.pkl").exists()
    (result,) = tuner(tmp_path).fit()
    assert result.checkpoint is not None


def test_an_experiment_that_runs_is_neither_started_nor_resumed(
    local_ray: None, tmp_path: Path
) -> None:
    tuner(tmp_path).fit()
    run = Run.open(tmp_path / "x", "resume", TIMEOUT_S, 1)
    run.begun = True
    with pytest.raises(LeaseHeldError):
        tuner(tmp_path, resume_errored=True).fit()
    run.close()


def test_an_experiment_without_what_a_restore_needs_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x/experiment_state-2026.json").write_text("{}")
    with pytest.raises(DamagedError, match=r"x/tuner\.pkl is not there, and its copy") as refused:
        tuner(tmp_path)
    assert 'run_config_kwargs(..., on_existing="resume")' in str(refused.value)  # by `tune.run`


def publish_without_state(root: Path) -> None:
    """What a driver leaves that is killed after its first checkpoint, and before its first save."""
    run = Run.open(root, "error", TIMEOUT_S, 1)
    run.publisher.record_later(placed(run.home.committer, {"a": b"1"}))
    run.flush(TIMEOUT_S)
    run.close()
    (root / "tuner.pkl").write_bytes(pickle.dumps({}))


@pytest.mark.parametrize("is_shared", [False, True])
def test_checkpoints_that_no_state_names_are_moved_aside_before_it_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_shared: bool
) -> None:
    publish_without_state(tmp_path / "x")
    sync_config = SyncConfig(upload_dir=tmp_path) if is_shared else SyncConfig()
    config = RunConfig(
        name="x", storage_path=None if is_shared else tmp_path, sync_config=sync_config, verbose=0
    )
    with caplog.at_level(logging.WARNING, "ray.tune_sync"):
        restore_or_start(stumbles, run_config=config)
    assert "no experiment_state-*.json that names them" in caplog.text
    (aside,) = tmp_path.glob("x.*")
    assert f"aside to {aside}" in caplog.text
    assert (aside / CHECKPOINT / "a").read_bytes() == b"1"
    assert (aside / layout.manifest_key(CHECKPOINT)).exists()
    assert (tmp_path / "x/tuner.pkl").read_bytes() != (aside / "tuner.pkl").read_bytes()
    assert not (tmp_path / "x" / layout.MANIFESTS_DIR).exists()
    assert not config.overwrite


def test_what_was_started_beside_a_dead_run_is_not_moved_aside_by_its_tuner_later(
    local_ray: None, tmp_path: Path
) -> None:
    publish_without_state(tmp_path / "x")
    again = tuner(tmp_path)
    (result,) = again.fit()
    with pytest.raises(ExperimentExistsError):
        again.fit()
    assert len(list(tmp_path.glob("x*"))) == 2
    assert Path(result.path).is_dir()


def test_where_nothing_can_be_moved_aside_the_error_says_what_else_can_be_done(
    tmp_path: Path,
) -> None:
    publish_without_state(tmp_path / "x")
    syncer = CommandSyncer("cp -r {source} {target}", "false {source} {target}", "rm {target}")
    sync_config = SyncConfig(upload_dir=str(tmp_path / "away"), syncer=syncer)
    config = RunConfig(name="x", storage_path=tmp_path, sync_config=sync_config)
    with pytest.raises(DamagedError, match="choose another name, or delete it first, there and"):
        restore_or_start(stumbles, run_config=config)
    assert (tmp_path / "x" / CHECKPOINT / "a").read_bytes() == b"1"


@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_what_a_restore_cannot_read_is_named(
    local_ray: None, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x/experiment_state-2026.json").write_text('{"trial_data": []}')
    (tmp_path / "x/tuner.pkl").write_bytes(content)
    with pytest.raises(DamagedError, match=r"x/tuner\.pkl is not whole"):
        tuner(tmp_path)


def test_what_cannot_be_seen_is_not_taken_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to(tmp_path / "unmounted")
    with pytest.raises(FileNotFoundError):
        tuner(tmp_path)
    (tmp_path / "x").unlink()
    (tmp_path / "x").write_text("a file")
    with pytest.raises(NotADirectoryError):
        tuner(tmp_path)


def test_a_bucket_that_does_not_answer_is_not_taken_for_an_empty_one() -> None:
    sync_config = SyncConfig(upload_dir="s3://bucket/results", storage_options=NOBODY)
    with pytest.raises(StoreUnreachableError) as refused:
        restore_or_start(stumbles, run_config=RunConfig(name="x", sync_config=sync_config))
    assert isinstance(refused.value, StoreError)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (lambda path: RunConfig(storage_path=path), "a name is needed"),
        (lambda path: RunConfig(name="x", storage_path=path, overwrite=True), "overwrite=True"),
        (lambda path: tune.RunConfig(name="x", storage_path=str(path)), "tune_sync.RunConfig"),
    ],
)
def test_a_call_that_cannot_work_says_why(tmp_path: Path, config: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        restore_or_start(stumbles, run_config=config(tmp_path))
