"""Large checkpoints and many files: memory stays flat, messages stay few, nothing is spilled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bed import Cluster
from tests.hosts.memory import Watched, watch

pytestmark = pytest.mark.hosts

MIB = 1 << 20
STORE_BYTES = 512 * MIB
# What a process may add to its own memory. With what it has under way in the object store
# (`remote_home.IN_FLIGHT_BYTES`, 96 MiB) that is 256 MiB.
OWN_BYTES = 160 * MIB
# Ray keeps what was freed for up to a second, to free many at once, and hands its pages out
# again before it spills.
STORE_USED_BYTES = STORE_BYTES

BIG = [["big.bin", 1230 * MIB, 1]]
SEVERAL = [["part{}.bin", 160 * MIB, 8]]
SMALL = [["d/f{}.bin", 4096, 10_000]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(worker_count=2, object_store_bytes=STORE_BYTES) as running:
        yield running


def run(
    cluster: Cluster, name: str, reports: list[dict[str, Any]], timeout_s: float = 200, **asked: Any
) -> tuple[dict[str, Any], dict[str, Watched]]:
    """Run the driver while the memory of all that take part is watched."""
    wanted = {
        "trial": ("w1", "ray::ImplicitFunc"),
        "agent": ("head", "ray::HomeAgent"),
        "reader": ("w2", "ray::read_back"),
    }
    spec = {"name": name, "reports": reports, **asked}
    with watch(cluster, wanted) as watched:
        script = "tests/hosts/drivers/amounts.py"
        found = cluster.drive("head", script, [json.dumps(spec)], timeout_s=timeout_s)
    assert found["home"] == "head"
    assert [told["host"] for told in found["reports"]] == ["w1"] * len(reports)
    assert all(told["equal"] for told in found["reports"])
    assert not found["spilled"]
    return found, watched


def assert_flat(watched: Watched, window_s: list[float]) -> None:
    own_bytes, store_bytes = watched.extra_bytes(window_s)
    print(f"{watched.title} on {watched.host}: {own_bytes >> 20} MiB, {store_bytes >> 20} in store")
    assert own_bytes <= OWN_BYTES
    assert store_bytes <= STORE_USED_BYTES


def test_a_file_larger_than_the_object_store_needs_little_memory_on_all_three_nodes(
    cluster: Cluster,
) -> None:
    found, watched = run(
        cluster, "big", [{"files": BIG}, {"files": BIG, "ours": True}], read_back=True
    )
    for told in found["reports"]:
        assert told["sent_bytes"] == BIG[0][1] > STORE_BYTES
        assert_flat(watched["trial"], told["window_s"])
        assert_flat(watched["agent"], told["window_s"])
        assert told["back"]["host"] == "w2"
        assert told["back"]["equal"]
        assert_flat(watched["reader"], told["back"]["window_s"])
        assert_flat(watched["agent"], told["back"]["window_s"])


def test_eight_large_files_at_once_need_no_more_memory_than_one(cluster: Cluster) -> None:
    found, watched = run(
        cluster, "several", [{"files": SEVERAL}, {"files": SEVERAL, "ours": True}], read_back=True
    )
    for told in found["reports"]:
        assert told["file_count"] == 8
        assert_flat(watched["trial"], told["window_s"])
        assert_flat(watched["agent"], told["window_s"])
        assert told["back"]["equal"]
        assert_flat(watched["reader"], told["back"]["window_s"])
        assert_flat(watched["agent"], told["back"]["window_s"])


def test_ten_thousand_small_files_travel_in_few_messages_and_seconds(cluster: Cluster) -> None:
    found, _ = run(cluster, "small", [{"files": SMALL}, {"files": SMALL, "ours": True}])
    for told in found["reports"]:
        assert told["file_count"] == 10_000
        assert told["sent_bytes"] == 10_000 * 4096
        assert told["sent_count"] <= 200
        assert told["window_s"][1] - told["window_s"][0] <= 5
