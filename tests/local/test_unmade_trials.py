"""A restored search makes the trials that it had not made before its driver died."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle, tune

from tests.hosts.searches import wait_for
from tests.local.drivers.unmade import GO_ON, NAME, STEPS, TRIALS_COUNT, waits
from tests.meta.repo import ROOT
from tune_sync import RunConfig, SyncConfig
from tune_sync.homes.home import LocalHome
from tune_sync.layout import MANIFESTS_DIR

TIMEOUT_S = 120.0


@pytest.mark.lowest_slow
def test_they_train_and_store_as_all_others(local_ray: None, tmp_path: Path) -> None:
    experiment = tmp_path / NAME

    def is_under_way() -> bool:
        states = [*experiment.glob("experiment_state-*.json")]
        return bool(states) and any((experiment / MANIFESTS_DIR).glob("*/*.json"))

    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.local.drivers.unmade", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(is_under_way, "a stored checkpoint of the first trial", TIMEOUT_S)
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    (tmp_path / GO_ON).touch()
    results = tune.Tuner.restore(str(experiment), trainable=waits).fit()
    assert [result.error for result in results] == [None] * TRIALS_COUNT
    for result in results:
        assert result.metrics["step"] == STEPS - 1
        assert result.checkpoint is not None and Path(result.checkpoint.path).is_dir()


def reports_once(config: dict[str, Any]) -> None:
    time.sleep(0.2)
    tune.report({"x": config["x"]})


@pytest.mark.parametrize("wait_for", ["stored", "staged"])
def test_at_no_moment_a_restore_would_leave_trials_out(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_for: Any
) -> None:
    """It takes those of the state, and makes those that the search does not count as made."""
    monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "2")
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    commit_file, moments = LocalHome.commit_file, []

    def slow(home: LocalHome, incoming: str, key: str, durable: bool) -> None:
        if key.startswith("basic-variant-state"):
            time.sleep(0.2)
        commit_file(home, incoming, key, durable)
        if key.startswith(("basic-variant-state", "experiment_state")):
            moments.append(counts(tmp_path / NAME))

    monkeypatch.setattr(LocalHome, "commit_file", slow)
    config = RunConfig(name=NAME, storage_path=tmp_path, sync_config=SyncConfig(wait_for=wait_for))
    space = {"x": tune.grid_search([*range(TRIALS_COUNT)])}
    results = tune.Tuner(reports_once, param_space=space, run_config=config).fit()
    assert len(results) == TRIALS_COUNT and not results.errors
    assert len(moments) > 3
    assert [moment for moment in moments if moment[0] < moment[1]] == []
    assert counts(tmp_path / NAME) == (TRIALS_COUNT, TRIALS_COUNT)


def counts(experiment: Path) -> tuple[int, int]:
    """How many trials the state names, and how many the search counts as made; without: all."""
    states, searches = (
        [*experiment.glob(f"{name}-*.json")] for name in ("experiment_state", "basic-variant-state")
    )
    if not states:
        return 0, 0
    named = len(json.loads(states[0].read_text())["trial_data"])
    if not searches:
        return named, TRIALS_COUNT
    (trials,) = cloudpickle.loads(searches[0].read_bytes())["_iterators"]
    return named, trials.counter
