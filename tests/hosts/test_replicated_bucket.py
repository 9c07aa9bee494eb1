"""Replicas on a second host, and a bucket that nothing has reached yet when a host dies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.bed import Cluster
from tests.hosts.drivers.replicated import FIRST_GENERATION
from tests.hosts.searches import DRIVERS, wait_for
from tests.hosts.stores import notes_and_bucket

pytestmark = pytest.mark.hosts

NOTES = "/srv/notes"
MEMORY = {"memory_limit": 256 << 20, "max_checkpoints_in_memory": 9}


class Bed:
    """Two workers, a head that only drives, and a store on a host of its own.

    Args:
        cluster: The hosts.
        notes: The machine's side of what the hosts note.
    """

    def __init__(self, cluster: Cluster, notes: Path) -> None:
        self.cluster = cluster
        self._notes = notes

    def notes(self, name: str, event: str) -> list[dict[str, Any]]:
        """What a run has noted, in the order in which it did."""
        file = self._notes / f"{name}.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [found for found in map(json.loads, lines) if found["event"] == event]

    def knows(self, name: str, count: int, ranks_count: int = 1) -> bool:
        """Whether so many reports have returned, and the driver has heard of them, too."""
        returned, heard = self.notes(name, "reported"), self.notes(name, "heard")
        return len(returned) == count * ranks_count and len(heard) == count

    @contextmanager
    def running(self, **spec: Any) -> Iterator[Future[dict[str, Any]]]:
        """A run, while the block does something to it."""
        arguments = [json.dumps({"fast_path": MEMORY, **spec})]
        with ThreadPoolExecutor(1) as pool:
            yield pool.submit(
                self.cluster.drive, "head", DRIVERS / "replicated.py", arguments,
                env=FIRST_GENERATION, timeout_s=150,
            )  # fmt: skip


@pytest.fixture(scope="module")
def whole_bed() -> Iterator[Bed]:
    with notes_and_bucket(NOTES, ("head", "w1", "w2")) as (cluster, notes):
        yield Bed(cluster, notes)


@pytest.fixture
def bed(whole_bed: Bed) -> Bed:
    """Both workers alive."""
    whole_bed.cluster.start(*whole_bed.cluster.workers)
    return whole_bed


def assert_stored(bed: Bed, name: str, found: dict[str, Any], ranks_count: int = 1) -> None:
    """All that was reported is in the bucket, whole, as it was reported last."""
    assert found["error"] == ""
    assert found["left"] == []
    wanted = {(n["step"], n["rank"]): n["digest"] for n in bed.notes(name, "reported")}
    stored = {
        (part["step"], int(rank)): part["digest"]
        for parts in found["published"].values()
        for rank, part in parts.items()
    }
    assert stored == wanted
    assert {len(parts) for parts in found["published"].values()} == {ranks_count}


def test_a_host_that_loses_power_before_anything_was_sent_costs_no_step(bed: Bed) -> None:
    """The bucket is out of reach from before these steps until the host has gone.

    Then it takes a while until the newest is there: the trial goes on from the home node's replica.
    """
    name, cluster = "dark", bed.cluster
    sync = {"max_bandwidth_bytes_per_s": 300_000}
    with bed.running(name=name, steps=7, hold_at=5, max_failures=2, sync=sync) as running:
        wait_for(lambda: len(bed.notes(name, "reported")) >= 2 or running.done(), "two reports")
        cluster.cut("store")
        wait_for(lambda: bed.knows(name, 5) or running.done(), "five reports")
        host = bed.notes(name, "reported")[-1]["host"]
        cluster.kill(host)
        wait_for(lambda: host not in cluster.alive(), "the host to be given up")
        cluster.heal("store")
        wait_for(lambda: len(bed.notes(name, "start")) == 2 or running.done(), "another start")
        status = cluster.drive("head", DRIVERS / "status.py", [name])
    first, second = bed.notes(name, "start")
    assert (first["host"], first["first"]) == (host, 0)
    assert {host, second["host"]} == {"w1", "w2"}
    assert second["first"] == 5, "it did not go on from its newest"
    assert second["is_in_memory"] and "/brought/" in second["directory"]
    came_by = {node["host"]: node["transports"] for node in status["nodes"]}
    assert came_by[cluster.addresses[second["host"]]] == ["tcp"], status
    assert_stored(bed, name, running.result())


@pytest.mark.slow
def test_a_trial_that_starts_again_on_its_node_opens_the_files_that_are_in_memory(
    bed: Bed,
) -> None:
    name = "again"
    with bed.running(name=name, host="w1", steps=3, fail_at=2, max_failures=1) as running:
        pass
    assert_stored(bed, name, running.result())
    (started,) = [n for n in bed.notes(name, "start") if n["first"]]
    (before,) = [n for n in bed.notes(name, "reported") if n["step"] == 1]
    assert started["directory"].startswith("/dev/shm/")
    assert started["is_in_memory"]
    assert [started["inode"]] == before["inodes"], "it was copied"
    assert started["digest"] == before["digest"]


def test_what_ranks_reported_outlives_the_host_of_one_of_them(bed: Bed) -> None:
    name, cluster = "ranks", bed.cluster
    with bed.running(name=name, ranks=2, steps=5, hold_at=3, max_failures=2) as running:
        wait_for(lambda: len(bed.notes(name, "reported")) >= 2 or running.done(), "a step")
        cluster.cut("store")
        wait_for(lambda: bed.knows(name, 3, ranks_count=2) or running.done(), "three steps")
        (host,) = {n["host"] for n in bed.notes(name, "reported") if n["rank"] == 1}
        cluster.kill(host)
        wait_for(lambda: host not in cluster.alive(), "the host to be given up")
        cluster.heal("store")
    assert {n["first"] for n in bed.notes(name, "start")} == {0, 3}
    assert_stored(bed, name, running.result(), ranks_count=2)
