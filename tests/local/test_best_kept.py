"""`keep_best`: what is left of a whole experiment, and what its state names meanwhile."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tests.hosts.drivers.trainables import read_checkpoint, write_checkpoint
from tests.local.test_periods import is_whole, named, newest_state, watched
from tune_sync import RunConfig, SyncConfig

TRIALS, STEPS, KEPT = 4, 4, 2
SCORES = {(trial, step): (trial * 7 + step * 11) % 41 for trial in range(TRIALS)
          for step in range(STEPS)}  # fmt: skip
MIB, AT_ONCE = 1 << 20, 2  # Ray has so many CPUs
BEST = sorted(SCORES, key=lambda of: SCORES[of])[-KEPT:]


def loop(config: dict[str, Any]) -> None:
    """The scores go up and down; a mark says that the trial has to fail half way, once."""
    found, first = tune.get_checkpoint(), 0
    if found is not None:
        with found.as_directory() as directory:
            first = read_checkpoint(directory)["step"] + 1
    for step in range(first, STEPS):
        if step == 2 and Path(config["fails"]).exists():
            raise RuntimeError("stumbled")
        with tempfile.TemporaryDirectory() as made:
            write_checkpoint(Path(made), {}, {"trial": config["trial"], "step": step})
            metrics = {"score": SCORES[config["trial"], step], "resumed_at": first}
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(made))


def what_is_there(root: Path) -> list[tuple[int, int]]:
    states = (read_checkpoint(path) for path in root.glob("*/checkpoint_*"))
    return sorted((state["trial"], state["step"]) for state in states)


def recorded(root: Path) -> int:
    return len(list(root.glob(".tune_sync/manifests/*/*.json")))


@contextmanager
def counted(root: Path) -> Iterator[list[int]]:
    """Counts the manifests all the time."""
    counts, is_over = [0], threading.Event()

    def look() -> None:
        while not is_over.wait(0.05):
            with suppress(FileNotFoundError):  # a directory went just then
                counts.append(recorded(root))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    yield counts
    is_over.set()
    thread.join()


def run_config(tmp_path: Path, fields: dict[str, Any] | None) -> RunConfig:
    far = tmp_path / "far"
    place: dict[str, Any] = {"sync_config": SyncConfig(keep_best=KEPT), "storage_path": far}
    if fields is not None:
        place = {"sync_config": SyncConfig(upload_dir=far, keep_best=KEPT, **fields)}
    score = tune.CheckpointConfig(checkpoint_score_attribute="score")
    return RunConfig(name="x", verbose=0, checkpoint_config=score, **place)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(None, id="home", marks=[pytest.mark.slow, pytest.mark.lowest_slow]),
        pytest.param({"wait_for": "staged"}, id="staged", marks=pytest.mark.lowest),
    ],
)
def test_the_best_of_all_trials_are_left_and_state_names_no_other(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any] | None
) -> None:
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    space = {"trial": tune.grid_search(list(range(TRIALS))), "fails": str(tmp_path / "none")}
    root = tmp_path / "far" / "x"
    tuner = tune.Tuner(
        loop, param_space=space, run_config=run_config(tmp_path, fields),
        tune_config=tune.TuneConfig(reuse_actors=True),
    )  # fmt: skip
    with watched(root, last=None) as wrong, counted(root) as counts:
        results = tuner.fit()
    assert not results.errors
    assert wrong == []
    assert what_is_there(root) == sorted(BEST)
    assert recorded(root) == KEPT
    left = {Path(c.path) for r in results for c, _ in r.best_checkpoints}
    assert {path.relative_to(path.parents[1]) for path in left} == {
        path.relative_to(path.parents[1]) for path in root.glob("*/checkpoint_*")
    }
    found = named(newest_state(root), root)
    assert {path.name for _, names in found for path in names}
    assert all(is_whole(root, path) for _, names in found for path in names)
    assert max(counts) < TRIALS * STEPS, "nothing went before the end"


def test_a_restore_keeps_the_best_of_before_and_after(local_ray: None, tmp_path: Path) -> None:
    mark = tmp_path / "fails"
    mark.touch()
    space = {"trial": tune.grid_search(list(range(TRIALS))), "fails": str(mark)}
    config = run_config(tmp_path, None)
    first = tune.Tuner(loop, param_space=space, run_config=config).fit()
    assert len(first.errors) == TRIALS
    root = tmp_path / "far" / "x"
    before = {of: score for of, score in SCORES.items() if of[1] < 2}
    best = {*sorted(before, key=lambda of: before[of])[-KEPT:], *((t, 1) for t in range(TRIALS))}
    assert what_is_there(root) == sorted(best)  # they may be tried again
    mark.unlink()
    results = tune.Tuner.restore(str(root), loop, resume_errored=True).fit()
    assert not results.errors
    assert {result.metrics["resumed_at"] for result in results} == {2}
    assert what_is_there(root) == sorted(BEST)
    state = json.loads(newest_state(root))
    assert len(state["trial_data"]) == TRIALS


def shuffled(trial: int, step: int) -> int:
    """A score that no two reports have."""
    return (7919 * trial + 104_729 * step) % 1_000_003


def large(config: dict[str, Any]) -> None:
    """Reports checkpoints of a size; they differ."""
    trial = config["trial"]
    for step in range(config["steps"]):
        with tempfile.TemporaryDirectory() as made:
            write_checkpoint(Path(made), {"blob_bytes": config["bytes"]}, {"of": [trial, step]})
            checkpoint = tune.Checkpoint.from_directory(made)
            tune.report({"score": shuffled(trial, step)}, checkpoint=checkpoint)


def files_below(directory: Path) -> dict[tuple[int, int], int]:
    """What a file is known by -> how many bytes it takes."""
    found = {}
    for top, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):  # it went just then
                info = os.stat(os.path.join(top, name))
                found[info.st_ino, info.st_ctime_ns] = info.st_size
    return found


@contextmanager
def measured(directory: Path) -> Iterator[list[int]]:
    """Notes all the time how many bytes a directory takes: of files that were there together."""
    sizes, is_over = [0], threading.Event()

    def look() -> None:
        while not is_over.wait(0.02):
            before, after = files_below(directory), files_below(directory)
            sizes.append(sum(before[file] for file in before.keys() & after.keys()))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    yield sizes
    is_over.set()
    thread.join()


@pytest.mark.parametrize(
    ("trials", "steps", "size_bytes"),
    [(8, 5, MIB), pytest.param(50, 10, 4 * MIB, marks=pytest.mark.slow)],
)
def test_the_best_five_of_many_are_left_and_a_node_stages_two_of_each_that_runs_at_most(
    local_ray: None, tmp_path: Path, trials: int, steps: int, size_bytes: int
) -> None:
    limit_bytes = AT_ONCE * size_bytes  # reports that begin below it may go beyond
    sync = SyncConfig(
        upload_dir=tmp_path / "far", wait_for="staged", keep_best=5,
        staging_dir=tmp_path / "staging", staging_limit_bytes=limit_bytes,
    )  # fmt: skip
    score = tune.CheckpointConfig(checkpoint_score_attribute="score")
    space = {"trial": tune.grid_search(list(range(trials))), "steps": steps, "bytes": size_bytes}
    tuner = tune.Tuner(
        large, param_space=space, tune_config=tune.TuneConfig(reuse_actors=True),
        run_config=RunConfig(name="x", verbose=0, checkpoint_config=score, sync_config=sync),
    )  # fmt: skip
    with measured(tmp_path / "staging") as staged_bytes:
        results = tuner.fit()
    assert not results.errors
    assert 0 < max(staged_bytes) <= 1.1 * 2 * limit_bytes
    reports = [(trial, step) for trial in range(trials) for step in range(steps)]
    best = sorted(reports, key=lambda of: shuffled(*of))[-5:]
    there = (tmp_path / "far/x").glob("*/checkpoint_*")
    assert sorted(tuple(read_checkpoint(path)["of"]) for path in there) == sorted(best)
    assert recorded(tmp_path / "far/x") == 5
