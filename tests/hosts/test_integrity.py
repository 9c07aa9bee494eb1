"""What is at home stays whole: with writers that die, callers that lie, and a home that hangs."""

from __future__ import annotations

import json
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
CABLE_MBIT = 400
# Each says by its class what was wrong with the call.
NAMED = {"PathRefusedError", "ImmutableError", "DamagedError", "NotWholeError"}


def check_kills(cluster: Cluster, name: str, kills: int, timeout_s: float) -> None:
    asked = {"name": name, "kills": kills, "steps": 3 * kills + 2, "seed": 11}
    script = "tests/hosts/drivers/killed.py"
    cluster.slow("w1", rate_mbit=CABLE_MBIT)  # a report takes a second, whatever the machine does
    try:
        found = cluster.drive("head", script, [json.dumps(asked)], timeout_s=timeout_s)
    finally:
        cluster.fast("w1")
    assert (found["home"], found["host"]) == ("head", "w1")
    assert len(found["kills"]) == kills
    assert len(found["through"]) <= kills - 2, "hardly any came in the middle of a report"
    assert found["broken"] == [], "what is visible at home is whole at every moment"
    assert found["last_step"] == asked["steps"] - 1
    assert found["published"] == sorted(found["steps"])
    assert sorted(found["steps"].values()) == list(range(asked["steps"]))
    assert found["leftovers"] == []
    assert len(found["starts"]) == kills + 1
    for start, at_s in found["starts"][1:]:
        newest = max(step for seen_s, step in found["seen"] if seen_s <= at_s)
        assert start == newest + 1, "it resumed from the newest whole one"


def test_a_process_killed_in_the_middle_of_reports_leaves_whole_checkpoints_only(
    cluster: Cluster,
) -> None:
    check_kills(cluster, "killed", 6, 240)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_thirty_kills_leave_whole_checkpoints_only() -> None:
    # More than 4 GiB of checkpoints: on the machine's disk, not in a host's memory.
    with Cluster(worker_count=1, keep_homes=["head"]) as cluster:
        check_kills(cluster, "killed30", 30, 800)


@pytest.mark.lowest
def test_hostile_calls_are_refused_by_a_named_error_and_change_nothing(cluster: Cluster) -> None:
    found = cluster.drive("head", "tests/hosts/drivers/hostile.py")
    assert len(found["errors"]) > 40
    assert {what: e for what, e in found["errors"].items() if e not in NAMED} == {}
    assert found["errors"]["write with a wrong digest"] == "DamagedError"
    assert found["errors"]["verb not on the list"] == "PathRefusedError"
    assert found["errors"]["write in no experiment"] == "PathRefusedError"
    assert set(found["seals"]) <= {"DamagedError", "PathRefusedError", "NotWholeError"}
    assert found["changed"] == []
    assert not found["canary"], "something that was received was unpickled"
    assert found["outside"] == "safe"
    assert found["good"] == "good"


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
    assert "6 s" in told["text"]
    assert told["type"] == "SyncTimeoutError" or "SyncTimeoutError" in told["text"]
    assert 5.5 < told["seconds"] < 50
    sent = found["digests"]
    assert found["found"] == {"0": sent[0], "2": sent[2]}
    assert found["leftovers"] == []
