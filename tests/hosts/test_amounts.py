"""Large checkpoints and many files: memory stays flat, messages stay few, nothing is spilled."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.bed import Cluster
from tests.hosts.memory import Watched, watch
from tests.hosts.stores import start_store
from tests.stores.seaweed import S3Server
from tune_sync.agents.remote_home import IN_FLIGHT_BYTES

pytestmark = pytest.mark.hosts

MIB = 1 << 20
STORE_BYTES = 512 * MIB
# What a process may add to its own memory: with what it has under way in the object store, 256 MiB.
OWN_BYTES = 256 * MIB - IN_FLIGHT_BYTES
# Ray keeps what was freed for up to a second, to free many at once, and hands its pages out
# again before it spills.
STORE_USED_BYTES = STORE_BYTES
# What Ray could not free: of one node that sends and one that reads, far below 80 % of the store.
HELD_BYTES = 2 * IN_FLIGHT_BYTES
LOOKS_COUNT = 20  # or it was not looked in the middle of anything

BIG = [["big.bin", 1230 * MIB, 1]]
SEVERAL = [["part{}.bin", 160 * MIB, 8]]
# Whatever else the machine does. File by file it would take longer.
LONGEST_S = 30
SMALL = [["d/f{}.bin", 4096, 10_000]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(worker_count=2, object_store_bytes=STORE_BYTES) as running:
        yield running


WANTED = {
    "trial": ("w1", "ray::ImplicitFunc"),
    "agent": ("head", "ray::HomeAgent"),
    "reader": ("w2", "ray::read_back"),
}


def run(
    cluster: Cluster, name: str, reports: list[dict[str, Any]], timeout_s: float = 200,
    wanted: Mapping[str, tuple[str, str]] = WANTED, **asked: Any,
) -> tuple[dict[str, Any], dict[str, Watched]]:  # fmt: skip
    """Run the driver while the memory of all that take part is watched."""
    spec = {"name": name, "reports": reports, **asked}
    with watch(cluster, wanted) as watched:
        script = "tests/hosts/drivers/amounts.py"
        found = cluster.drive("head", script, [json.dumps(spec)], timeout_s=timeout_s)
    assert found["home"] == "head"
    assert [told["host"] for told in found["reports"]] == ["w1"] * len(reports)
    assert all(told["equal"] for told in found["reports"])
    assert found["looks_count"] > LOOKS_COUNT
    print(f"held in one object store: {found['held_bytes'] >> 20} MiB")
    assert found["held_bytes"] <= HELD_BYTES
    assert found["spilled_bytes"] == 0
    return found, watched


def assert_flat(watched: Watched, window_s: list[float]) -> None:
    own_bytes, store_bytes = watched.extra_bytes(window_s)
    print(f"{watched.title} on {watched.host}: {own_bytes >> 20} MiB, {store_bytes >> 20} in store")
    assert own_bytes <= OWN_BYTES
    assert store_bytes <= STORE_USED_BYTES


@pytest.mark.parametrize(
    ("name", "files"),
    [
        pytest.param("big", BIG, id="a file larger than the object store"),
        pytest.param("several", SEVERAL, id="eight large files at once", marks=pytest.mark.slow),
    ],
)
def test_large_files_need_little_memory_on_all_three_nodes(
    cluster: Cluster, name: str, files: list[Any]
) -> None:
    # What needs less memory goes first: what a process has got already is not counted again.
    reports = [{"files": files, "ours": True}, {"files": files, "read_back": True}]
    found, watched = run(cluster, name, reports)
    for told in found["reports"]:
        assert told["sent_bytes"] == sum(size * count for _, size, count in files) > STORE_BYTES
        assert_flat(watched["trial"], told["window_s"])
        assert_flat(watched["agent"], told["window_s"])
    back = found["reports"][1]["back"]
    assert back["host"] == "w2"
    assert back["equal"]
    assert_flat(watched["reader"], back["window_s"])
    assert_flat(watched["agent"], back["window_s"])


def test_ten_thousand_small_files_travel_in_few_messages(cluster: Cluster) -> None:
    reports = [{"files": SMALL, "ours": True}, {"files": SMALL, "read_back": True}]
    found, _ = run(cluster, "small", reports)
    for told in found["reports"]:
        assert told["file_count"] == 10_000
        assert told["sent_bytes"] == 10_000 * 4096
        assert told["sent_count"] <= 200
        assert told["window_s"][1] - told["window_s"][0] <= LONGEST_S
    back = found["reports"][1]["back"]
    assert back["equal"]
    assert back["window_s"][1] - back["window_s"][0] <= LONGEST_S


@pytest.mark.slow
@pytest.mark.parametrize("sync", [{}, {"wait_for": "staged"}], ids=["stored", "staged"])
def test_a_trial_needs_little_memory_for_what_it_puts_into_a_bucket(sync: dict[str, Any]) -> None:
    """And no more for a checkpoint that is four times as large."""
    sizes = (1230 * MIB // 4, 1230 * MIB)
    reports = [{"files": [["big.bin", size, 1], ["part/{}", MIB, 50]]} for size in sizes]
    with Cluster(
        worker_count=1, object_store_bytes=STORE_BYTES, bare_hosts=["store"], disk_bytes=6 << 30
    ) as cluster:
        server = S3Server(start_store(cluster))
        asked = {"upload_dir": "s3://bucket/amounts", "storage_options": server.options, **sync}
        wanted = {"trial": WANTED["trial"]} | ({"sender": ("w1", "ray::NodeAgent")} if sync else {})
        found, watched = run(cluster, "bucket", reports, wanted=wanted, sync=asked)
        windows = [told["window_s"] for told in found["reports"]]
        for window_s in windows:
            assert_flat(watched["trial"], window_s)
        if sync:  # behind the report
            assert_flat(watched["sender"], [windows[1][0], math.inf])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_checkpoint_sixteen_times_the_object_store_needs_little_memory() -> None:
    files = [["big.bin", 8 << 30, 1], ["part/{}.bin", MIB, 1000]]
    with Cluster(
        worker_count=2, object_store_bytes=STORE_BYTES, keep_homes=["head", "w1"]
    ) as cluster:
        found, watched = run(cluster, "huge", [{"files": files}], timeout_s=800, room="~")
        [told] = found["reports"]
        assert_flat(watched["trial"], told["window_s"])
        assert_flat(watched["agent"], told["window_s"])
