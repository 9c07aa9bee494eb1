"""What is at home stays whole: with writers that die, callers that lie, and a home that hangs."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.bed import Cluster
from tests.hosts.memory import processes

pytestmark = pytest.mark.hosts

STEP_S = 90.0
# Ray gives a call up after three tries of some ten seconds.
STOP_S = 55.0
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


@pytest.mark.lowest_slow
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


def report_to_a_hanging_home(
    cluster: Cluster, name: str, timeout_s: float, until: Callable[[], object]
) -> dict[str, Any]:
    """What a trial finds whose second report meets a stopped home agent, which goes on later."""
    found: dict[str, Any] = {}

    def drive() -> None:
        script, argv = "tests/hosts/drivers/hanging.py", [name, str(timeout_s)]
        found.update(cluster.drive("head", script, argv, timeout_s=4 * STEP_S))

    driver = threading.Thread(target=drive)
    driver.start()
    wait_for(cluster, f"{name}-ready")
    agents = processes(cluster, "head", "ray::HomeAgent")
    assert len(agents) == 1
    os.kill(agents[0], signal.SIGSTOP)
    try:
        cluster.exec("w1", ["touch", f"{name}-stopped"])
        until()
    finally:
        os.kill(agents[0], signal.SIGCONT)
    wait_for(cluster, f"{name}-told")
    cluster.exec("w1", ["touch", f"{name}-continued"])
    driver.join(STEP_S)
    return found


def test_a_hanging_home_fails_the_report_in_time_and_late_chunks_change_nothing(
    cluster: Cluster,
) -> None:
    timeout_s = 12.0  # longer than a home may stand still on a busy machine
    found = report_to_a_hanging_home(
        cluster, "hanging", timeout_s, lambda: wait_for(cluster, "hanging-told")
    )
    told = found["told"]
    assert "sync_timeout" in told["text"]
    assert "12 s" in told["text"]
    assert told["type"] == "SyncTimeoutError" or "SyncTimeoutError" in told["text"]
    assert 11.5 < told["seconds"] < 50
    sent = found["digests"]
    assert found["found"] == {"0": sent[0], "2": sent[2]}
    assert found["leftovers"] == []


@pytest.mark.slow
def test_a_report_waits_for_a_home_that_is_stopped_for_longer_than_ray_waits(
    cluster: Cluster,
) -> None:
    found = report_to_a_hanging_home(cluster, "stopped", 600.0, lambda: time.sleep(STOP_S))
    assert found["told"]["text"] == "" and found["told"]["seconds"] > STOP_S - 5
    assert list(found["found"].values()) == found["digests"]
    assert found["leftovers"] == []
