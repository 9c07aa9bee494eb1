"""A replica many times the budget for what is under way: memory stays flat at both ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed import Cluster
from tests.hosts.memory import Watched
from tests.hosts.searches import wait_for
from tests.hosts.test_amounts import MIB, STORE_BYTES, run
from tune_sync.agents.replica_home import IN_FLIGHT_BYTES
from tune_sync.behind.replica_intake import SLOT_BYTES, SLOTS_COUNT

pytestmark = pytest.mark.hosts

# What a process may add to its own memory: with what it has under way, 256 MiB.
OWN_BYTES = 256 * MIB - IN_FLIGHT_BYTES
BIG_BYTES = 400 * MIB
# In shared memory, beside the copy itself.
WAYS = {"tcp": SLOTS_COUNT * (SLOT_BYTES + MIB), "object_store": STORE_BYTES}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(worker_count=1, object_store_bytes=STORE_BYTES, shm_bytes=3 << 30) as running:
        yield running


def assert_flat(watched: Watched, window_s: list[float], shared_bytes: int) -> int:
    """Returns by how much shared memory of its host grew: by a copy, and what is on its way."""
    own_bytes, more_bytes = watched.extra_bytes(window_s)
    print(f"{watched.title} on {watched.host}: {own_bytes >> 20} MiB, {more_bytes >> 20} shared")
    assert own_bytes <= OWN_BYTES
    assert more_bytes <= BIG_BYTES + shared_bytes
    return more_bytes


def in_memory(cluster: Cluster, host: str) -> Iterator[Path]:
    """What is there of any run."""
    return cluster.host(host).path("/dev/shm").glob("tune_sync-*")


@pytest.mark.parametrize(
    "transport", [pytest.param(way, marks=[] if way == "tcp" else pytest.mark.slow) for way in WAYS]
)
def test_a_large_replica_needs_little_memory_on_both_nodes(
    cluster: Cluster, transport: str
) -> None:
    fast_path = {"memory_limit": 2 << 30, "transport": transport, "required": True}
    # The first one is for what processes need once: imports, connections, slots.
    sizes = (MIB, BIG_BYTES, BIG_BYTES)
    reports = [{"files": [["big.bin", size, 1]], "ours": True} for size in sizes]
    wanted = {
        "trial": ("w1", "ray::ImplicitFunc"),
        "sender": ("w1", "ray::NodeAgent"),
        "receiver": ("head", "ray::NodeAgent"),
    }
    found, watched = run(
        cluster, transport, reports, wanted=wanted,
        sync={"wait_for": "replicated", "fast_path": fast_path},
    )  # fmt: skip
    grown_bytes = [
        assert_flat(watched[name], told["window_s"], WAYS[transport])
        for told in found["reports"][1:]
        for name in wanted
    ]
    assert grown_bytes[list(wanted).index("receiver")] > BIG_BYTES / 2, "there was no replica"
    wait_for(lambda: not [*in_memory(cluster, "head"), *in_memory(cluster, "w1")], "its memory")
