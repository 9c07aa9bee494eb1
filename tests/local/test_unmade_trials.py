"""A restored search makes the trials that it had not made before its driver died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ray import tune

from tests.hosts.searches import wait_for
from tests.local.drivers.unmade import GO_ON, NAME, STEPS, TRIALS_COUNT, waits
from tests.meta.repo import ROOT
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
