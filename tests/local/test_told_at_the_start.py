"""What the log says once a run has begun."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tune_sync import RunConfig, SyncConfig

pytestmark = pytest.mark.usefixtures("local_ray")


def reports(config: dict[str, Any]) -> None:
    tune.report({"score": 1})


def test_where_results_are_and_that_a_period_has_no_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number, period_s in enumerate((300, 20)):
        caplog.clear()
        sync = SyncConfig(sync_period=period_s)
        config = RunConfig(f"x{number}", storage_path=tmp_path, verbose=0, sync_config=sync)
        with caplog.at_level(logging.INFO, "ray.tune_sync"):
            assert not tune.Tuner(reports, run_config=config).fit().errors
        assert f"results of all nodes are kept in {tmp_path}/x{number}" in caplog.text
        assert ("sync_period=20 has no effect" in caplog.text) == (period_s == 20)
