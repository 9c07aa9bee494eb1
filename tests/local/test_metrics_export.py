"""What Prometheus reads of a real Ray, which exports metrics with packages of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local.trainables import HALF, HALT_BYTES

REPOSITORY = Path(__file__).parents[2]
PACKAGES = REPOSITORY / ".setup/metrics"
TIMEOUT_S = 250.0

Found = dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    assert PACKAGES.is_dir(), "scripts/test installs them"
    env = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    env["PYTHONPATH"] = f"{REPOSITORY}:{PACKAGES}"
    argv = [sys.executable, "-m", "tests.local.drivers.metered"]
    done = subprocess.run(
        [*argv, str(tmp_path_factory.mktemp("metered"))],
        env=env, text=True, capture_output=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-8000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    read: Found = json.loads(line.removeprefix("RESULT "))
    return read


def test_reports_that_wait_are_counted_with_what_they_stored(found: Found) -> None:
    halfway, ended = found["direct"], found["direct, at its end"]
    assert halfway["tune_sync_stored_checkpoints_total"] == HALF
    assert halfway["tune_sync_stored_bytes_total"] == HALF * HALT_BYTES
    assert halfway["tune_sync_reports_total"] == HALF
    assert 0 < halfway["tune_sync_report_blocked_seconds_total"] < 60
    assert "tune_sync_staged_checkpoints" not in halfway
    assert ended["tune_sync_stored_checkpoints_total"] == 2 * HALF


def test_what_is_staged_is_told_while_the_destination_takes_nothing(found: Found) -> None:
    refusing = found["refusing"]
    assert refusing["tune_sync_staged_checkpoints"] == HALF
    assert refusing["tune_sync_staged_bytes"] == HALF * HALT_BYTES
    assert 0 < refusing["tune_sync_oldest_unstored_seconds"] < 60
    assert refusing["tune_sync_failed_checkpoints"] == 0
    assert refusing["tune_sync_stored_checkpoints_total"] == HALF
    assert refusing["tune_sync_reports_total"] == 2 * HALF


def test_what_was_staged_is_counted_once_when_it_is_stored(found: Found) -> None:
    taking, ended = found["taking"], found["staged, at its end"]
    assert taking["tune_sync_staged_checkpoints"] == 0
    assert taking["tune_sync_oldest_unstored_seconds"] == 0
    assert ended["tune_sync_stored_checkpoints_total"] == 2 * HALF
    assert ended["tune_sync_stored_bytes_total"] == 2 * HALF * HALT_BYTES


def test_bytes_of_replicas_are_counted_by_what_they_came_by(found: Found) -> None:
    assert found["replicated"] == {
        "tune_sync_replica_bytes_total by tcp": 7,
        "tune_sync_replica_bytes_total by object_store": 2,
    }


def test_what_fails_and_what_a_node_keeps_for_another_one_is_told(found: Found) -> None:
    kept = found["kept twice"]
    assert kept["tune_sync_failed_checkpoints"] == 2
    assert kept["tune_sync_replicated_checkpoints"] == 3
    assert kept["tune_sync_replicated_bytes"] == 9
    assert kept["tune_sync_staged_checkpoints"] == 0
