"""A process that dies while it reports leaves no half checkpoint behind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.bed import Cluster

pytestmark = pytest.mark.hosts


def check_rounds(cluster: Cluster, name: str, kills: int, ours: bool, timeout_s: float) -> None:
    asked = {"name": name, "kills": kills, "steps": 2 * kills + 2, "seed": 11, "ours": ours}
    found = cluster.drive(
        "head", "tests/hosts/drivers/killed.py", [json.dumps(asked)], timeout_s=timeout_s
    )
    assert (found["home"], found["host"]) == ("head", "w1")
    assert len(found["kills"]) == kills
    # Some kills come after the report was through, and hit the pause after it; most do not.
    restarts = found["starts"][1:]
    assert kills // 2 <= len(restarts) <= kills
    assert found["broken"] == []
    assert found["last_step"] == asked["steps"] - 1
    assert found["published"] == sorted(found["steps"])
    assert sorted(found["steps"].values()) == list(range(asked["steps"]))
    assert found["leftovers"] == []
    for start, at_s in restarts:
        assert start - 1 == newest_before(found, at_s), "it resumed from the newest whole one"


def newest_before(found: dict[str, Any], at_s: float) -> int:
    return max(step for seen_s, step in found["seen"] if seen_s <= at_s)


@pytest.mark.parametrize("ours", [False, True])
def test_a_process_killed_in_the_middle_of_reports_leaves_whole_checkpoints_only(
    cluster: Cluster, ours: bool
) -> None:
    check_rounds(cluster, f"killed{ours}", 5, ours, 200)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_thirty_kills_leave_whole_checkpoints_only(cluster: Cluster) -> None:
    check_rounds(cluster, "killed30", 30, False, 600)
