"""`sync_on_checkpoint=False`: what arrives at the destination, and what state names meanwhile."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray import tune

from tests.hosts.drivers.trainables import read_checkpoint
from tests.hosts.searches import wait_for
from tests.local import trainables
from tests.local.test_adopt import drive_until
from tune_sync import RunConfig, SyncConfig
from tune_sync.agents.home_agent import NAMESPACE

PERIOD_S = 2.0
STEPS, PAUSE_S = 50, 0.15
TRIAL_COUNT = 2
AGENTS, TRIALS = "ray::NodeAgent", "ray::ImplicitFunc"


def number_of(path: Path) -> int:
    return int(path.stem.removeprefix("checkpoint_"))


def published(root: Path) -> dict[str, list[int]]:
    """Trial directory -> the numbers of its checkpoints that count."""
    found: dict[str, list[int]] = {}
    for path in sorted(root.glob(".tune_sync/manifests/*/*.json")):
        found.setdefault(path.parent.name, []).append(number_of(path))
    return found


def named(state: bytes, root: Path) -> list[tuple[str, set[Path]]]:
    """Of each trial in a state: its status, and the checkpoints that its record holds."""
    path = re.compile(re.escape(str(root)).encode() + rb"/[^/]+/checkpoint_[0-9]{6}")
    found = []
    for trial, metadata in json.loads(state)["trial_data"]:
        record = bytes.fromhex(json.loads(metadata)["checkpoint_manager"]["value"])
        names = {Path(name.decode()) for name in path.findall(record)}
        found.append((json.loads(trial)["status"], names))
    return found


def newest_state(root: Path) -> bytes:
    states = sorted(root.glob("experiment_state-*.json"))
    return states[-1].read_bytes() if states else b'{"trial_data": []}'


def is_whole(root: Path, checkpoint: Path) -> bool:
    inner = checkpoint.relative_to(root)
    manifest = root / ".tune_sync/manifests" / inner.with_name(f"{inner.name}.json")
    try:
        return manifest.exists() and bool(read_checkpoint(checkpoint))
    except OSError:
        return False


@contextmanager
def watched(root: Path, last: int | None = STEPS - 1) -> Iterator[list[str]]:
    """Reads the state all the time; yields what it named that was not there.

    Args:
        root: The experiment's directory.
        last: A trial that has ended has a checkpoint with this number; None: nobody looks.
    """
    wrong: list[str] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.05):
            state = newest_state(root)
            for status, names in named(state, root):
                gone = [str(path) for path in names if not is_whole(root, path)]
                if (
                    status == "TERMINATED"
                    and last is not None
                    and last not in map(number_of, names)
                ):
                    gone.append("the last")
                if gone and newest_state(root) == state:
                    wrong.extend(gone)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    yield wrong
    is_over.set()
    thread.join()


def sync_config(upload_dir: Path, **fields: Any) -> SyncConfig:
    staging_dir = str(upload_dir.with_name("staging"))
    return SyncConfig(upload_dir=upload_dir, **{**settings(staging_dir), **fields})


def settings(staging_dir: str) -> dict[str, Any]:
    return {
        "wait_for": "staged", "sync_on_checkpoint": False, "sync_period": PERIOD_S,
        "staging_dir": staging_dir,
    }  # fmt: skip


@pytest.mark.parametrize(
    "keep",
    [
        pytest.param(None, marks=[pytest.mark.slow, pytest.mark.lowest_slow]),
        pytest.param(1, marks=pytest.mark.lowest),
    ],
)
def test_each_trials_newest_travels_once_a_period_and_its_last(
    local_ray: None, tmp_path: Path, keep: int | None
) -> None:
    root = tmp_path / "far" / "x"
    tuner = tune.Tuner(
        trainables.paced,
        param_space={"steps": STEPS, "pause_s": PAUSE_S, "n": tune.grid_search([0, 1])},
        run_config=RunConfig(
            name="x", verbose=0, sync_config=sync_config(tmp_path / "far"),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=keep),
        ),
    )  # fmt: skip
    began_s = time.monotonic()
    with watched(root) as wrong:
        results = tuner.fit()
    periods_count = (time.monotonic() - began_s) / PERIOD_S
    assert wrong == []
    assert not results.errors
    there = published(root)
    assert len(there) == TRIAL_COUNT
    for numbers in there.values():
        assert numbers[-1] == STEPS - 1
        if keep is None:
            # A busy machine may miss the turns of a period or two.
            assert 2 <= len(numbers) <= periods_count + 2
        else:
            assert len(numbers) == 1
    for source in (results, tune.Tuner.restore(str(root), trainables.paced).get_results()):
        for result in source:
            assert result.metrics["step"] == STEPS - 1
            assert is_whole(root, Path(result.checkpoint.path))
            known = [number_of(Path(c.path)) for c, _ in result.best_checkpoints]
            assert known == there[Path(result.checkpoint.path).parent.name]
    wait_for(lambda: not any((tmp_path / "staging").rglob("*.*")), "agents to leave nothing")


def test_after_a_kill_each_trial_goes_on_from_the_newest_that_a_period_made_durable(
    local_ray: None, tmp_path: Path
) -> None:
    root, staging = tmp_path / "x", tmp_path / "staging"

    def more_is_staged_than_has_arrived() -> bool:
        """After two periods; its agents are stopped then, or they would send it meanwhile."""
        numbers = published(root).values()
        arrived = len(numbers) == TRIAL_COUNT and all(n[-1] > PERIOD_S / PAUSE_S for n in numbers)
        if not arrived or not all(names for _, names in named(newest_state(root), root)):
            return False
        signal_agents(signal.SIGSTOP)
        if newest(staged(staging)) > newest(arrived_in(root)):
            return True
        signal_agents(signal.SIGCONT)
        return False

    before = processes(TRIALS)  # of runs of other tests that were cut off
    drive_until(
        more_is_staged_than_has_arrived, tmp_path, "paced",
        space={"steps": 10_000, "pause_s": PAUSE_S, "n": [0, 1]}, checkpoint={"num_to_keep": 1},
        sync=settings(str(staging)),
    )  # fmt: skip
    for found in ray.util.list_named_actors(all_namespaces=True):
        if found["namespace"] == NAMESPACE and found["name"].startswith("stage-"):
            ray.kill(ray.get_actor(found["name"], namespace=NAMESPACE), no_restart=True)
    signal_agents(signal.SIGKILL)  # a stopped process does not end by itself
    wait_for(lambda: not processes(AGENTS), "the end of the agents")
    # Ray ends a dead driver's trials a moment later: until then they may stage another one.
    wait_for(lambda: processes(TRIALS) <= before, "the end of the trials")
    newest_staged = newest(staged(staging))
    shutil.rmtree(staging)  # their nodes died too
    for _, names in named(newest_state(root), root):
        assert names
        assert all(is_whole(root, path) for path in names)
    durable = arrived_in(root)
    assert newest_staged > newest(durable), "nothing is lost"

    results = tune.Tuner.restore(str(root), trainables.paced, resume_errored=True).fit()
    assert not results.errors
    for result in results:
        newest_durable = max(durable[Path(result.checkpoint.path).parent.name])
        assert result.metrics["resumed_at"] == newest_durable + 1
    assert {len(numbers) for numbers in published(root).values()} == {1}


def staged(staging: Path) -> dict[str, list[int]]:
    """As `published`, of the checkpoints that nodes hold."""
    found: dict[str, list[int]] = {}
    for directory, _, _ in os.walk(staging):  # they come and go
        path = Path(directory)
        if path.name.startswith("checkpoint_"):
            found.setdefault(path.parent.name, []).append(number_of(path))
    return found


def newest(numbers: dict[str, list[int]]) -> int:
    return max(map(max, numbers.values()), default=0)


def arrived_in(root: Path) -> dict[str, list[int]]:
    """As `published`, with what has arrived and the driver had no time to say so."""
    found = published(root)
    for path in {p.parents[1] for p in root.glob(".tune_sync/staging/*/*/*/seal.json")}:
        found.setdefault(path.parent.name, []).append(number_of(path))
    return found


def signal_agents(number: signal.Signals) -> None:
    for pid in processes(AGENTS):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def processes(title: str) -> set[int]:
    """Of this Ray, with this title."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            found |= {process.pid} if title in " ".join(process.cmdline()) else set()
    return found


@pytest.mark.lowest_slow
def test_what_is_sent_behind_a_dead_driver_keeps_what_was_reported_with_it(
    local_ray: None, tmp_path: Path
) -> None:
    """Its period is never over, so the driver publishes next to nothing; the seals tell."""
    staging = tmp_path / "staging"
    far_enough = 8

    def is_far_enough() -> bool:
        state = json.loads(newest_state(tmp_path / "x"))["trial_data"]
        numbers = staged(staging).values()
        return len(state) == len(numbers) == TRIAL_COUNT and min(map(max, numbers)) >= far_enough

    root = drive_until(
        is_far_enough, tmp_path, "paced",
        space={"steps": 10_000, "pause_s": PAUSE_S, "n": [0, 1]}, checkpoint={},
        sync={**settings(str(staging)), "sync_period": 10_000.0},
    )  # fmt: skip
    results = tune.Tuner.restore(str(root), trainables.paced, resume_errored=True).fit()
    assert not results.errors
    # The last one may have been in the making.
    assert min(result.metrics["resumed_at"] for result in results) >= far_enough
    for result in results:
        known = [(number_of(Path(c.path)), m["step"]) for c, m in result.best_checkpoints]
        assert len(known) > 1
        assert [number for number, _ in known] == [step for _, step in known]
        assert result.metrics["training_iteration"] == result.metrics["step"] + 1
