"""A home that hangs is told from one that is slow, and what it does later changes nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest

from tests.bed import Cluster
from tests.hosts.memory import processes

pytestmark = pytest.mark.hosts

STEP_S = 60.0


def wait_for(cluster: Cluster, name: str) -> None:
    """Wait for a file in HOME of w1."""
    path = cluster.host("w1").path(cluster.host("w1").expand(f"~/{name}"))
    deadline_s = time.monotonic() + STEP_S
    while not path.exists():
        assert time.monotonic() < deadline_s, f"no {name}"
        time.sleep(0.02)


def test_a_hanging_home_fails_the_report_in_time_and_late_chunks_change_nothing(
    cluster: Cluster,
) -> None:
    found: dict[str, Any] = {}

    def drive() -> None:
        found.update(cluster.drive("head", "tests/hosts/drivers/hanging.py"))

    driver = threading.Thread(target=drive)
    driver.start()
    wait_for(cluster, "ready")
    agents = processes(cluster, "head", "ray::HomeAgent")
    assert len(agents) == 1
    os.kill(agents[0], signal.SIGSTOP)
    try:
        cluster.exec("w1", ["touch", "stopped"])
        wait_for(cluster, "failed")
    finally:
        os.kill(agents[0], signal.SIGCONT)
    cluster.exec("w1", ["touch", "continued"])
    driver.join(STEP_S)
    told = found["told"]
    assert "sync_timeout" in told["text"]
    assert "3 s" in told["text"]
    assert told["type"] == "SyncTimeoutError" or "SyncTimeoutError" in told["text"]
    assert 2.5 < told["seconds"] < 15
    sent = found["digests"]
    assert found["found"] == {"0": sent[0], "2": sent[2]}
    assert found["leftovers"] == []
