"""`tune_sync.staged_checkpoint` in trials: moved where that is of use, the same result anywhere."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ray import tune

import tune_sync
from tests.hosts.drivers.trainables import read_checkpoint, write_checkpoint
from tests.hosts.searches import wait_for
from tune_sync import RunConfig, SyncConfig
from tune_sync.errors import ConfigError

STEPS = 3
BLOB_BYTES = 3_000_000


def settings(way: str, root: Path) -> dict[str, Any]:
    """How a run is configured whose results come to be below `root`."""
    if way == "staged":
        sync = SyncConfig(upload_dir=root, wait_for="staged", staging_dir=root.parent / "staging")
        return {"sync_config": sync}
    if way == "shared":
        return {"sync_config": SyncConfig(upload_dir=root)}
    return {"storage_path": root, "sync_config": SyncConfig()}


def fit(way: str, tmp_path: Path, trainable: Any, **more: Any) -> Any:
    root = tmp_path / "far"
    config = RunConfig(name="x", verbose=0, **settings(way, root), **more)
    space = {"way": way, "notes": str(tmp_path)}
    (result,) = tune.Tuner(trainable, param_space=space, run_config=config).fit()
    return result


def note(config: dict[str, Any], line: str) -> None:
    with Path(config["notes"], "notes").open("a") as notes:
        notes.write(line + "\n")


def noted(tmp_path: Path) -> list[str]:
    notes = tmp_path / "notes"
    return notes.read_text().splitlines() if notes.exists() else []


def leftovers(tmp_path: Path) -> list[str]:
    """What is anywhere in staging, or in the making."""
    plain = Path(tempfile.gettempdir(), f"tune_sync-{os.getuid()}", ".tune_sync/making")
    walks = (os.walk(top) for top in (tmp_path / "staging", plain))
    return [file for walk in walks for *_, files in walk for file in files if file.endswith(".bin")]


def inodes(top: Path, name: str) -> set[int]:
    """Of all files of that name: they go while this looks."""
    found = set()
    for directory, _, files in os.walk(top):
        with suppress(FileNotFoundError):
            found |= {Path(directory, name).stat().st_ino} if name in files else set()
    return found


def hands_over(config: dict[str, Any]) -> None:
    for step in range(STEPS):
        with tune_sync.staged_checkpoint() as staged:
            write_checkpoint(Path(staged), {"blob_bytes": BLOB_BYTES}, {"step": step})
            assert staged.path.is_relative_to(config["notes"]) == (config["way"] == "staged")
            number = (staged.path / "blob.bin").stat().st_ino
            tune.report({"step": step}, checkpoint=staged.checkpoint)
            note(config, str(number in inodes(Path(config["notes"], "staging"), "blob.bin")))
            assert not staged.path.exists()


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("staged", marks=pytest.mark.lowest),
        pytest.param("shared", marks=pytest.mark.lowest_slow),
        pytest.param("home", marks=pytest.mark.lowest_slow),
    ],
)
def test_all_that_is_reported_arrives_and_nothing_stays(
    local_ray: None, tmp_path: Path, way: str
) -> None:
    result = fit(way, tmp_path, hands_over)
    assert result.error is None
    found = sorted((tmp_path / "far" / "x").glob("*/checkpoint_*"))
    assert [read_checkpoint(path)["step"] for path in found] == list(range(STEPS))
    assert all((path / "empty").is_dir() for path in found)
    # The first that was moved may be at its destination, and gone, before anybody looks.
    assert ("True" in noted(tmp_path)) == (way == "staged")
    wait_for(lambda: not leftovers(tmp_path), "staging to be empty")


def is_registered(config: dict[str, Any], step: int) -> bool:
    """Whether a checkpoint is published, which comes after that."""
    return any(Path(config["notes"], "far/x/.tune_sync/manifests").glob(f"*/*{step}.json"))


def stumbles(config: dict[str, Any]) -> None:
    found, first = tune.get_checkpoint(), 0
    if found is not None:
        with found.as_directory() as directory:
            first = read_checkpoint(directory)["step"] + 1
            note(config, f"resumed at {first}")
    for step in range(first, STEPS):
        try:
            with tune_sync.staged_checkpoint() as given_up:
                write_checkpoint(given_up.path, {}, {"step": -1})
                raise InterruptedError
        except InterruptedError:
            assert not given_up.path.exists()
        with tune_sync.staged_checkpoint() as staged:
            write_checkpoint(staged.path, {}, {"step": step})
            tune.report({"step": step}, checkpoint=staged.checkpoint)
            if first == 0 and step == 1:
                wait_for(partial(is_registered, config, step), "the driver to have heard of it")
                with tune_sync.staged_checkpoint() as half:
                    write_checkpoint(half.path, {}, {"step": -2})
                    note(config, str(half.path))
                    os._exit(1)


@pytest.mark.lowest
def test_a_killed_trial_goes_on_from_what_it_handed_over_and_its_half_is_removed(
    local_ray: None, tmp_path: Path
) -> None:
    failures = tune.FailureConfig(max_failures=1)
    result = fit("staged", tmp_path, stumbles, failure_config=failures)
    assert result.error is None
    half, resumed = noted(tmp_path)
    assert resumed == "resumed at 2"
    found = sorted((tmp_path / "far" / "x").glob("*/checkpoint_*"))
    assert [read_checkpoint(path)["step"] for path in found] == list(range(STEPS))
    assert not Path(half).exists()


def twice(config: dict[str, Any]) -> None:
    with tune_sync.staged_checkpoint() as staged:
        write_checkpoint(staged.path, {}, {"step": 0})
        tune.report({"step": 0}, checkpoint=staged.checkpoint)
        try:
            tune.report({"step": 1}, checkpoint=staged.checkpoint)
        except tune_sync.errors.ConfigError as error:
            note(config, str(error))


def test_a_second_report_is_refused_by_name(local_ray: None, tmp_path: Path) -> None:
    assert fit("staged", tmp_path, twice).error is None
    (said,) = noted(tmp_path)
    assert "was reported before" in said


def plain_ray(config: dict[str, Any]) -> None:
    for step in range(STEPS):
        with tune_sync.staged_checkpoint() as staged:
            write_checkpoint(staged.path, {}, {"step": step})
            tune.report({"step": step}, checkpoint=staged.checkpoint)


def test_a_trainable_runs_with_plain_ray_too(local_ray: None, tmp_path: Path) -> None:
    config = tune.RunConfig(name="x", storage_path=str(tmp_path), verbose=0)
    (result,) = tune.Tuner(plain_ray, run_config=config).fit()
    assert result.error is None
    found = sorted((tmp_path / "x").glob("*/checkpoint_*"))
    assert [read_checkpoint(path)["step"] for path in found] == list(range(STEPS))


def test_outside_of_a_trial_it_is_a_temporary_directory() -> None:
    with tune_sync.staged_checkpoint() as staged:
        assert staged.path.is_dir()
        assert os.fspath(staged) == str(staged.path)
    assert not staged.path.exists()


def mistakes_the_directory(config: dict[str, Any]) -> None:
    with tune_sync.staged_checkpoint() as staged:
        tune.report({"step": 0}, checkpoint=staged)


def test_the_directory_is_no_checkpoint_and_the_error_says_what_to_report(
    local_ray: None, tmp_path: Path
) -> None:
    config = RunConfig(name="x", verbose=0, storage_path=tmp_path)
    (error,) = tune.Tuner(mistakes_the_directory, run_config=config).fit().errors
    assert "report checkpoint=staged.checkpoint" in str(error)


@pytest.mark.parametrize("size", ["1GB", True, -1, float("nan"), float("inf")])
def test_a_size_that_is_none_is_refused(size: Any) -> None:
    with (
        pytest.raises(ConfigError, match=r"size_bytes=.*a size in bytes is needed"),
        tune_sync.staged_checkpoint(size_bytes=size),
    ):
        pass
