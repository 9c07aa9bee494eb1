"""Replication over a bad cable, through agents that are killed, and with too little memory.

Results are on the head's disk. The cable of the worker is so slow that a replica is on its way for
a second or more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.bed import Cluster
from tests.hosts.searches import assert_sound, said, search, stored_digests, wait_for
from tests.hosts.test_behind import AGENTS, agents
from tests.hosts.test_faults import another, searching
from tests.hosts.test_replicated import arriving, reported

pytestmark = [pytest.mark.hosts, pytest.mark.slow]

CUT_S = 10.0
# After a cut TCP waits as long again, at most, until it tries.
STALL_S = 2.5 * CUT_S
FILE_BYTES = 1_300_000  # more than what travels in batches
SETTINGS = {"file_count": 4, "file_bytes": FILE_BYTES, "pause_s": 0.1, "host": "w1"}
CHECKPOINT_BYTES = 4 * FILE_BYTES
RATE_MBIT = 40
MEMORY = "/dev/shm"
# With the bed's own settings Ray takes a node for dead that does not answer for 10 s.
PATIENT = {
    "RAY_health_check_failure_threshold": "30",
    "RAY_grpc_client_keepalive_timeout_ms": "60000",
}


def replicated(**fast_path: Any) -> dict[str, Any]:
    return {"wait_for": "replicated", "fast_path": {"memory_limit": 256 << 20, **fast_path}}


@pytest.fixture(scope="module")
def whole_cluster() -> Iterator[Cluster]:
    with Cluster(worker_count=1, worker_cpus=2, head_cpus=0, env=PATIENT) as running:
        yield running


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Cluster:
    whole_cluster.slow("w1", rate_mbit=RATE_MBIT)
    return whole_cluster


@contextmanager
def little_memory(cluster: Cluster, host: str, size_bytes: int) -> Iterator[None]:
    """A host whose shared memory is so small. Ray's object store is open already, and stays."""
    cluster.small_disk(host, MEMORY, size_bytes)
    try:
        yield
    finally:
        cluster.unmount(host, MEMORY)


def wait_for_a_replica_on_its_way(cluster: Cluster, name: str, running: Future[Any]) -> None:
    wait_for(lambda: len(reported(cluster, name)) >= 1 or running.done(), "a report")
    wait_for(lambda: bool(arriving(cluster, "head")) or running.done(), "a replica on its way")
    assert not running.done(), "the run is over"


def assert_all(found: dict[str, Any], steps: int) -> None:
    """Each step was reported once, by a trial that went on all the time, and is there."""
    assert found["errors"] == []
    assert_sound(found)
    for trial in found["trials"]:
        assert [row["step"] for row in trial["reported"]] == list(range(steps))
        assert {row["resumed_at"] for row in trial["reported"]} == {0}, "the trial restarted"
        assert stored_digests(trial) == {row["step"]: row["digest"] for row in trial["reported"]}


def took_s(found: dict[str, Any]) -> list[float]:
    """How long reports took: each row tells it of the one before."""
    return sorted(row["took_s"] for trial in found["trials"] for row in trial["reported"][1:])


def test_a_cable_that_is_cut_for_a_while_only_delays(cluster: Cluster) -> None:
    trials = [{**SETTINGS, "steps": 8}]
    with searching(cluster, name="cut", sync=replicated(), trials=trials) as running:
        wait_for_a_replica_on_its_way(cluster, "cut", running)
        cluster.cut("w1")
        before = len(reported(cluster, "cut"))
        time.sleep(CUT_S)  # the link is down for so long
        assert len(reported(cluster, "cut")) <= before + 1, (
            "a report came through a cable that is cut"
        )
        cluster.heal("w1")
    found = running.result()
    assert_all(found, 8)
    *others, longest_s = took_s(found)
    assert CUT_S / 2 < longest_s < STALL_S, took_s(found)
    assert others[-1] < CUT_S, took_s(found)
    wait_for(lambda: not arriving(cluster, "head"), "what arrived in part to go")


def test_a_slow_and_lossy_cable_costs_nothing_but_time(cluster: Cluster) -> None:
    cluster.slow("w1", delay_ms=20, rate_mbit=RATE_MBIT, loss_pct=1)
    found = search(cluster, name="lossy", sync=replicated(), trials=[{**SETTINGS, "steps": 4}])
    assert_all(found, 4)


@pytest.mark.parametrize("host", ["head", "w1"])
def test_a_killed_agent_costs_no_report(cluster: Cluster, host: str) -> None:
    """The one of the node that takes replicas, and of the one that sends."""
    name = f"killed-{host}"
    trials = [{**SETTINGS, "steps": 6}]
    with searching(cluster, name=name, sync=replicated(), trials=trials) as running:
        wait_for_a_replica_on_its_way(cluster, name, running)
        (agent,) = agents(cluster, host)
        cluster.exec(host, ["kill", "-KILL", agent])
        wait_for(lambda: another(cluster, AGENTS, agent, host) or running.done(), "another agent")
        assert not running.done(), "the kill came too late"
    assert_all(running.result(), 6)


def test_a_home_node_without_memory_takes_replicas_to_its_disk_and_says_so(
    cluster: Cluster,
) -> None:
    trials = [{**SETTINGS, "steps": 4}]
    with little_memory(cluster, "head", CHECKPOINT_BYTES):
        found = search(cluster, name="no-home", sync=replicated(), trials=trials)
    assert_all(found, 4)
    assert said(cluster, "w1", "goes to the other node's disk")


def test_a_checkpoint_that_is_larger_than_shared_memory_is_staged_on_the_disk(
    cluster: Cluster,
) -> None:
    trials, sync = [{**SETTINGS, "steps": 4}], replicated(memory_limit=None)
    with little_memory(cluster, "w1", CHECKPOINT_BYTES // 2):
        found = search(cluster, name="no-room", sync=sync, trials=trials)
    assert_all(found, 4)
    assert said(cluster, "w1", "is staged on the disk, in /tmp/tune_sync-")


def in_memory_bytes(cluster: Cluster, host: str) -> int:
    """What checkpoints take of shared memory of a host."""
    total_bytes = 0
    inside = "dev/shm/tune_sync*/*/*/.tune_sync/staging/*/*/*/data/*"
    for path in cluster.host(host).path("/").glob(inside):
        with suppress(FileNotFoundError):
            total_bytes += path.stat().st_size
    return total_bytes


def test_two_runs_of_a_node_keep_within_one_budget(cluster: Cluster) -> None:
    limit_bytes = 3 * CHECKPOINT_BYTES
    sync = replicated(memory_limit=limit_bytes)
    trials = [{**SETTINGS, "steps": 5}]
    most: dict[str, int] = {}
    with (
        searching(cluster, name="one", sync=sync, trials=trials) as one,
        searching(cluster, name="two", sync=sync, trials=trials) as two,
    ):
        while not (one.done() and two.done()):
            for host in ("head", "w1"):
                most[host] = max(most.get(host, 0), in_memory_bytes(cluster, host))
            time.sleep(0.05)
    for running in (one, two):
        assert_all(running.result(), 5)
    assert max(most.values()) <= limit_bytes
    assert most["w1"] > limit_bytes - CHECKPOINT_BYTES, "they were never short of it"
