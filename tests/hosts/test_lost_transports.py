"""A way from memory to memory that ends while a run uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.bed import Cluster
from tests.hosts.searches import DRIVERS, assert_sound, stored_digests, wait_for
from tests.hosts.test_faults import searching
from tests.hosts.test_replicated import reported
from tests.hosts.test_replicated_faults import said

pytestmark = pytest.mark.hosts

PORTS = "7700-7709"
STEPS, HELD_AT = 3, 1
SLOW_BYTES_PER_S = 9_000
TRIAL = {
    "file_count": 1, "file_bytes": 1_300_000, "pause_s": 0.1, "host": "w1", "steps": STEPS,
    "told_at": HELD_AT,
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(worker_count=1, worker_cpus=1, head_cpus=0) as running:
        yield running


@contextmanager
def closed_ports(cluster: Cluster) -> Iterator[None]:
    """Nothing of the worker gets to these ports any more, also on connections that are open."""
    rule = ["ipproto", "tcp", "dport", PORTS, "unreachable"]
    cluster.exec("w1", ["ip", "rule", "add", *rule])
    try:
        yield
    finally:
        cluster.exec("w1", ["ip", "rule", "del", *rule])


def run(cluster: Cluster, name: str, *, required: bool, **more: object) -> dict[str, Any]:
    """A search whose ports are closed after its first report, which came by TCP."""
    go_on = cluster.host("w1").expand("~/go_on")
    cluster.exec("w1", ["rm", "-f", go_on])
    path = {"memory_limit": 256 << 20, "transport": "tcp", "required": required, "ports": PORTS}
    sync = {"wait_for": "replicated", "fast_path": path, **more}
    with searching(cluster, name=name, sync=sync, trials=[TRIAL], timeout_s=250) as running:
        try:
            wait_for(lambda: len(reported(cluster, name)) >= HELD_AT or running.done(), "a report")
            assert not running.done(), running.result()
            status = cluster.drive("w1", DRIVERS / "status.py", [name])
            assert {way for node in status["nodes"] for way in node["transports"]} == {"tcp"}
            with closed_ports(cluster):
                cluster.exec("w1", ["touch", go_on])
                return running.result()
        finally:
            cluster.exec("w1", ["touch", go_on])


def test_one_that_is_only_wanted_gives_way_to_the_object_store_and_a_warning_says_so(
    cluster: Cluster,
) -> None:
    found = run(cluster, "wanted", required=False)
    assert found["errors"] == []
    assert_sound(found)
    (trial,) = found["trials"]
    assert stored_digests(trial) == {row["step"]: row["digest"] for row in trial["reported"]}
    assert sorted(stored_digests(trial)) == list(range(STEPS))
    assert said(cluster, "w1", "transport 'tcp' was asked for; 'object_store' is used (tcp: ")


@pytest.mark.slow
def test_one_that_is_required_ends_the_trial_with_what_does_not_get_through(
    cluster: Cluster,
) -> None:
    """What reaches its destination meanwhile needs no other copy: so that takes long here."""
    found = run(cluster, "required", required=True, max_bandwidth_bytes_per_s=SLOW_BYTES_PER_S)
    (error,) = found["errors"]
    assert "TransportMissingError" in error and "transport 'tcp' is required" in error
    assert f"{cluster.addresses['head']}:77" in error
    (trial,) = found["trials"]
    assert list(stored_digests(trial)) == [0], "what was reported is stored"
