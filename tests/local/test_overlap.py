"""A reported directory that overlaps with the storage path loses and gains nothing."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from ray import tune

import tune_sync
from tests.hosts.searches import wait_for
from tune_sync import RunConfig, SyncConfig

REPORTS_COUNT = 5
LOG_BYTES = 1 << 20


def digest_of(directory: Path) -> str:
    return hashlib.sha256((directory / "log.txt").read_bytes()).hexdigest()


def overlaps(config: dict[str, Any]) -> None:
    """Report each directory five times, with Ray's class and ours."""
    for name, place in config["places"].items():
        directory = Path(place)
        (directory / "log.txt").write_bytes(os.urandom(LOG_BYTES))
        before = digest_of(directory)
        errors = []
        for number in range(REPORTS_COUNT):
            kind = tune_sync.Checkpoint if number % 2 else tune.Checkpoint
            try:
                tune.report({"case": ""}, checkpoint=kind.from_directory(directory))
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
        same = digest_of(directory) == before
        tune.report({"case": name, "errors": errors, "same": same})
        (directory / "log.txt").unlink()


# A link is the directory that it points to: which one it was, the file system does not tell.
OVERLAPS = {
    "equal": "is the storage path of this run",
    "link": "is the storage path of this run",
    "parent": "holds the storage path of this run",
    "experiment": "is the experiment directory of this run",
}


class Keep(tune.Callback):  # type: ignore[misc]
    """Keeps what a trial says about each case."""

    def __init__(self) -> None:
        self.cases: dict[str, dict[str, Any]] = {}

    def on_trial_result(self, *args: Any, result: dict[str, Any], **info: Any) -> None:
        if result["case"]:
            self.cases[result["case"]] = result


@pytest.mark.lowest_slow
def test_directories_that_overlap_with_the_storage_path_keep_their_bytes(
    local_ray: None, tmp_path: Path
) -> None:
    storage = tmp_path / "parent/storage"
    child = storage / "work"
    child.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(storage)
    places = {
        "equal": storage, "parent": storage.parent, "link": link, "experiment": storage / "x",
        "child": child,
    }  # fmt: skip
    keep = Keep()
    (result,) = tune.Tuner(
        overlaps,
        param_space={"places": {name: str(place) for name, place in places.items()}},
        run_config=RunConfig(name="x", storage_path=storage, callbacks=[keep], verbose=0),
    ).fit()
    assert result.error is None
    assert set(keep.cases) == set(places)
    for name, case in keep.cases.items():
        assert case["same"], name
        if name == "child":  # it holds no results, and is copied as any other directory
            assert case["errors"] == []
            continue
        assert len(case["errors"]) == REPORTS_COUNT, name
        for error in case["errors"]:
            assert error.startswith("PathRefusedError")
            assert OVERLAPS[name] in error
    checkpoints = list((storage / "x").glob("*/checkpoint_*"))
    assert len(checkpoints) == REPORTS_COUNT
    for checkpoint in checkpoints:
        assert os.listdir(checkpoint) == ["log.txt"]
        assert (checkpoint / "log.txt").stat().st_size == LOG_BYTES
    assert not list((storage / "x/.tune_sync").glob("staging/**/*"))


def deletes_at_home(config: dict[str, Any]) -> None:
    """Write an artifact, remove its copy at home when it is there, and go on syncing."""
    trial = Path.cwd()
    (trial / "note.txt").write_text("once")
    at_home = Path(config["root"]) / trial.name
    tune.report({"there": False, "again": False})
    wait_for((at_home / "note.txt").is_file, "the file at home")  # it is sent in the background
    there = (at_home / "note.txt").is_file()
    (at_home / "note.txt").unlink()
    for number in range(3):
        (trial / f"more_{number}.txt").write_text("more")
        tune.report({"there": there, "again": (at_home / "note.txt").exists()})


def test_a_file_deleted_from_the_results_does_not_come_back(
    local_ray: None, tmp_path: Path
) -> None:
    sync_config = SyncConfig(sync_artifacts=True, sync_period=0.001)
    (result,) = tune.Tuner(
        deletes_at_home,
        param_space={"root": str(tmp_path / "x")},
        run_config=RunConfig(name="x", storage_path=tmp_path, sync_config=sync_config, verbose=0),
    ).fit()
    assert result.error is None
    assert (result.metrics["there"], result.metrics["again"]) == (True, False)
    (trial,) = (path for path in (tmp_path / "x").glob("deletes_at_home_*") if path.is_dir())
    assert sorted(p.name for p in trial.glob("*.txt")) == [f"more_{n}.txt" for n in range(3)]
