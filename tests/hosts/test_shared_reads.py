"""Many readers of one stored checkpoint, on three hosts, and what they cost the store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.bed import Cluster
from tests.hosts.drivers.shared_reads import HOSTS, READERS_COUNT, READING
from tests.hosts.searches import DRIVERS, wait_for
from tests.hosts.stores import notes_and_bucket

pytestmark = pytest.mark.hosts

BLOB_BYTES = 32 << 20
FILES_COUNT = 21
RATE_MBIT = 80  # three seconds for the whole


class Bed:
    """Two workers, a head that drives, and a store on a host of its own."""

    def __init__(self, cluster: Cluster, notes: Path) -> None:
        self.cluster = cluster
        self._notes = notes

    def sent_bytes(self) -> int:
        """By the store, until now."""
        counts = self.cluster.exec("store", ["cat", "/proc/net/dev"]).stdout.partition("e0:")[2]
        return int(counts.split()[8])

    def read(self, name: str, memory_limit: int = 256 << 20, **more: Any) -> dict[str, Any]:
        """Have all of them read one checkpoint."""
        spec = {"name": name, "blob_bytes": BLOB_BYTES, "fast_path": {"memory_limit": memory_limit}}
        spec |= more
        driver = DRIVERS / "shared_reads.py"
        found: dict[str, Any] = self.cluster.drive(
            "head", driver, [json.dumps(spec)], timeout_s=150
        )
        return found

    def is_reading(self, name: str) -> bool:
        return (self._notes / name).exists()

    def has_read(self, name: str, wave: int) -> bool:
        return (self._notes / f"{name}.{wave}.read").exists()

    def go_on(self, name: str, wave: int) -> None:
        """Let the next hosts read."""
        (self._notes / f"{name}.{wave}").touch()


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with notes_and_bucket(str(READING), ["head"]) as (cluster, notes):
        yield Bed(cluster, notes)


def assert_read(found: dict[str, Any]) -> None:
    """All of them have read what was reported."""
    assert len(found["found"]) == len(HOSTS) * READERS_COUNT
    assert {seen["digest"] for seen in found["found"]} == {found["digest"]}
    assert {seen["files"] for seen in found["found"]} == {FILES_COUNT}


def test_it_is_read_from_the_store_once_and_once_a_host(bed: Bed) -> None:
    before_bytes = bed.sent_bytes()
    found = bed.read("shared")
    assert_read(found)
    assert all(seen["is_in_memory"] for seen in found["found"])
    for host in HOSTS:
        inodes = {seen["inode"] for seen in found["found"] if seen["host"] == host}
        assert len(inodes) == 1, "several copies on one host"
    assert BLOB_BYTES <= bed.sent_bytes() - before_bytes < 1.3 * BLOB_BYTES


def test_the_third_host_takes_it_from_the_second_when_the_first_is_gone(bed: Bed) -> None:
    before_bytes = bed.sent_bytes()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(bed.read, "handed_on", waves=[["w1"], ["w2"], ["head"]])
        try:
            wait_for(lambda: bed.has_read("handed_on", 0) or running.done(), "the first host")
            bed.go_on("handed_on", 1)
            wait_for(lambda: bed.has_read("handed_on", 1) or running.done(), "the second host")
            bed.cluster.kill("w1")
        finally:
            bed.go_on("handed_on", 2)
        found = running.result()
    bed.cluster.start("w1")
    assert_read(found)
    assert all(seen["is_in_memory"] for seen in found["found"])
    assert BLOB_BYTES <= bed.sent_bytes() - before_bytes < 1.3 * BLOB_BYTES


@pytest.mark.slow
def test_without_memory_for_it_each_reads_by_itself(bed: Bed) -> None:
    found = bed.read("no_room", memory_limit=BLOB_BYTES // 2)
    assert_read(found)
    assert not any(seen["is_in_memory"] for seen in found["found"])


@pytest.mark.slow
def test_the_agent_that_reads_for_all_dies_and_they_read_all_the_same(bed: Bed) -> None:
    agents = ["pgrep", "-f", "^ray::NodeAgent"]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(bed.read, "died")
        wait_for(lambda: bed.is_reading("died") or running.done(), "the readers")
        bed.cluster.slow("store", rate_mbit=RATE_MBIT)
        try:
            wait_for(lambda: bool(arriving(bed)) or running.done(), "a copy on its way")
            for host in arriving(bed):
                for pid in bed.cluster.exec(host, agents).stdout.split():
                    bed.cluster.exec(host, ["kill", "-KILL", pid])
        finally:
            bed.cluster.fast("store")
        assert_read(running.result())


def arriving(bed: Bed) -> list[str]:
    """Hosts that have a part of a copy for readers."""
    inside = "dev/shm/*/*/*/brought/.tune_sync/staging/*/*/*/data/blob.bin"
    return [host for host in HOSTS if list(bed.cluster.host(host).path("/").glob(inside))]
