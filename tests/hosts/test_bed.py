"""The bed itself: hosts are isolated, and what is done to them really happens."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bed import BedError, Cluster, DriverError, tree_digest
from tests.bed.isolation import assert_isolated

PING = (
    "import socket, sys, time\n"
    "start_s = time.monotonic()\n"
    "socket.create_connection((sys.argv[1], 6379), timeout=float(sys.argv[2])).close()\n"
    "print(time.monotonic() - start_s)\n"
)


def connect_s(cluster: Cluster, name: str, timeout_s: float = 3.0) -> float:
    """How long a TCP connection from a host to the head takes."""
    argv = [sys.executable, "-c", PING, cluster.addresses["head"], str(timeout_s)]
    return float(cluster.exec(name, argv).stdout)


def connects_again(cluster: Cluster, name: str, timeout_s: float = 30.0) -> bool:
    """Whether a host reaches the head again; address resolution takes a moment after a cut."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        try:
            return connect_s(cluster, name) < timeout_s
        except BedError:
            time.sleep(0.2)
    return False


def test_hosts_share_nothing(cluster: Cluster) -> None:
    cluster.assert_isolated()


def test_hosts_that_share_disks_are_noticed(cluster: Cluster) -> None:
    with pytest.raises(BedError, match="sees marks"):
        assert_isolated({"w1": cluster.host("w1"), "twin": cluster.host("w1")})
    cluster.exec("w1", ["sh", "-c", "rm -f ~/.bed-* /tmp/.bed-* /dev/shm/.bed-* /srv/.bed-*"])


def test_plain_ray_fails_at_the_first_checkpoint_of_a_worker(cluster: Cluster) -> None:
    result = cluster.drive("head", "tests/bed/drivers/plain_ray.py")
    assert len(result["errors"]) == 1
    assert "Unable to set up cluster storage" in result["errors"][0]


def test_tree_shows_files_links_and_empty_directories_of_a_host(
    cluster: Cluster, tmp_path: Path
) -> None:
    make = "mkdir -p t/empty t/sub; echo hello > t/sub/file; ln -s sub/file t/link"
    cluster.exec("w1", ["sh", "-c", make])
    cluster.exec("w1", ["sh", "-c", "cp -a t /tmp/t"])
    tree = cluster.tree("w1", "~/t")
    assert {path: entry[0] for path, entry in tree.items()} == {
        "empty": "dir",
        "sub": "dir",
        "sub/file": "file",
        "link": "link",
    }
    assert tree == cluster.tree("w1", "/tmp/t") == tree_digest(cluster.host("w1").path("/tmp/t"))
    with pytest.raises(BedError, match="NotADirectoryError"):
        cluster.tree("w2", "~/t")


def test_a_failing_driver_raises_with_its_output(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("print('so far', flush=True)\nraise SystemExit(3)\n")
    with pytest.raises(DriverError, match="so far") as failure:
        cluster.drive("w1", script)
    assert failure.value.returncode == 3


def test_a_late_driver_is_stopped(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text("import time\nprint('here', flush=True)\ntime.sleep(60)\n")
    with pytest.raises(DriverError, match="ran over") as failure:
        cluster.drive("w1", script, timeout_s=1)
    assert failure.value.returncode is None


def test_slow_and_cut_cables(cluster: Cluster) -> None:
    assert min(connect_s(cluster, "w1") for _ in range(5)) < 0.1
    cluster.slow("w1", delay_ms=50)
    assert 0.1 <= connect_s(cluster, "w1") < 3
    assert min(connect_s(cluster, "w2") for _ in range(5)) < 0.1
    cluster.fast("w1")
    assert min(connect_s(cluster, "w1") for _ in range(5)) < 0.1
    cluster.cut("w1")
    with pytest.raises(BedError, match=r"timed out|No route"):
        connect_s(cluster, "w1", 1.0)  # it shall not be cut off for so long that Ray gives it up
    cluster.heal("w1")
    assert connects_again(cluster, "w1")
    assert cluster.alive() == {"head", "w1", "w2"}


def test_a_lossy_cable_still_carries_ray(cluster: Cluster) -> None:
    cluster.slow("w1", loss_pct=2, rate_mbit=200)
    try:
        result = cluster.drive("w1", "tests/bed/drivers/bytes_over.py", ["head", 8 << 20])
        assert result["seconds"] > 8 * (8 << 20) / 200e6
    finally:
        cluster.fast("w1")


def test_a_small_disk_fills_and_a_read_only_one_refuses(cluster: Cluster) -> None:
    cluster.small_disk("w2", "~/small", 1 << 20)
    full = cluster.exec("w2", ["dd", "if=/dev/zero", "of=small/f", "bs=1M", "count=2"], check=False)
    assert "No space left" in full.stderr
    cluster.exec("w2", ["rm", "small/f"])
    cluster.read_only("w2", "~/small")
    refused = cluster.exec("w2", ["touch", "small/f"], check=False)
    assert "Read-only" in refused.stderr
    cluster.unmount("w2", "~/small")
    cluster.exec("w2", ["touch", "small/f"])
    cluster.unmount("w2", "~/small")


def test_a_killed_host_is_noticed_and_can_come_back(
    fresh_cluster: Callable[..., Cluster],
) -> None:
    cluster = fresh_cluster(worker_count=1, homes={"w1": "/srv/alice"}, keep_homes=["head"])
    cluster.exec("w1", ["touch", "/srv/alice/lost"])
    start_s = time.monotonic()
    cluster.kill("w1")
    cluster.wait_dead("w1")
    assert time.monotonic() - start_s < 60
    cluster.start("w1")
    assert cluster.tree("w1", "~") == {}
    assert cluster.exec("head", ["ls", "/srv"]).stdout.split() == ["home"]

    cluster.exec("head", ["touch", "kept"])
    cluster.kill("head")
    cluster.kill("w1")
    cluster.start("head", "w1")
    assert cluster.alive() == {"head", "w1"}
    assert "kept" in cluster.tree("head", "~")
