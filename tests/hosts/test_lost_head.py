"""The head's host is lost, with Ray's head and the driver: the same script is started again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bed import Cluster
from tests.bed.driver import driver_argv
from tests.hosts.searches import DRIVERS, wait_for
from tests.local.test_periods import number_of

# Ray is started four times, and a dead host's lease counts for half a minute.
pytestmark = [pytest.mark.hosts, pytest.mark.slow]

STAGING = "/srv/home/staging"
RESULTS = "/srv/home/ray_results"
STEPS = 5
STARTS_S = 240.0


@contextmanager
def driving(cluster: Cluster, log: Path) -> Iterator[subprocess.Popen[str]]:
    """The script on the head, whose host may be killed."""
    argv = driver_argv(cluster.host("head"), cluster.python, DRIVERS / "head_lost.py", [STAGING])
    with log.open("w") as out:
        yield cluster.popen("head", argv, {}, stdout=out, stderr=subprocess.STDOUT)


def stored(cluster: Cluster) -> int:
    """The newest checkpoint that a saved state at home names; -1: none."""
    root = cluster.host("head").path(f"{RESULTS}/x")
    states = "".join(path.read_text() for path in root.glob("experiment_state-*.json"))
    named = (p for p in root.glob("*/checkpoint_*") if p.name in states)
    return max(map(number_of, named), default=-1)


def kept(cluster: Cluster) -> int:
    """The newest checkpoint that w1 has a copy of, beside a copy of the state; -1: none."""
    root = cluster.host("w1").path(STAGING)
    if not any(root.glob("*/*/.tune_sync/state/experiment_state-*.json")):
        return -1
    copies = root.glob("*/*/.tune_sync/staging/*/checkpoint_*")
    return max(map(number_of, copies), default=-1)


def resumed_at(cluster: Cluster) -> list[int]:
    """Where each row of the results says that its trial went on."""
    root = cluster.host("head").path(f"{RESULTS}/x")
    rows = [line for path in root.glob("*/result.json") for line in path.read_text().splitlines()]
    return [json.loads(row)["resumed_at"] for row in rows]


def lose_head(cluster: Cluster, *more: str, keeps_disk: bool) -> None:
    cluster.kill("head", *more)
    cluster.start("head", "w1")
    if not keeps_disk:
        cluster.exec("head", ["rm", "-rf", RESULTS])


def test_a_lost_head_is_resumed_from_its_disk_or_a_workers_copies_or_begun_anew(
    fresh_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = fresh_cluster(worker_count=1, keep_homes=("head",))
    with driving(cluster, tmp_path / "first"):
        wait_for(lambda: stored(cluster) >= STEPS, "state that names a checkpoint", STARTS_S)
        lose_head(cluster, keeps_disk=True)

    with driving(cluster, tmp_path / "disk"):
        wait_for(lambda: max(resumed_at(cluster), default=0) > 0, "a trial that goes on", STARTS_S)
        first = max(resumed_at(cluster))
        assert first > STEPS
        assert "resuming what is there" in (tmp_path / "disk").read_text()
        wait_for(lambda: kept(cluster) >= first + STEPS, "copies on the worker", STARTS_S)
        lose_head(cluster, keeps_disk=False)
    left = kept(cluster)

    cluster.exec("w1", ["touch", "end"])
    with driving(cluster, tmp_path / "copies") as driver:
        assert driver.wait(STARTS_S) == 0, (tmp_path / "copies").read_text()
    said = (tmp_path / "copies").read_text()
    assert "was brought back from another node" in said
    assert max(resumed_at(cluster)) > left - 2, "its newest may have been in the making"

    lose_head(cluster, "w1", keeps_disk=False)
    cluster.exec("w1", ["touch", "end"])
    with driving(cluster, tmp_path / "nothing") as driver:
        assert driver.wait(STARTS_S) == 0, (tmp_path / "nothing").read_text()
    said = (tmp_path / "nothing").read_text()
    assert "nothing to resume, nor has a node a copy, starting afresh" in said
    assert resumed_at(cluster) == [0]
