"""Syncers of the user's own, whose tool only the driver's host can use: a bucket as the mirror."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bed import Cluster
from tests.hosts.searches import DRIVERS, assert_sound, reported_digests, stored_digests
from tests.hosts.stores import start_store
from tests.stores.seaweed import S3Server

pytestmark = pytest.mark.hosts

URL = "s3://bucket/mirror"
TRIALS = [
    {"host": "w1", "steps": 5, "fail_at": 3, "file_count": 10},
    {"host": "w2", "steps": 5, "fail_at": 3, "blob_bytes": 12 << 20},
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two workers, a head that drives, and a store on a host of its own."""
    with Cluster(worker_count=2, bare_hosts=["store"], disk_bytes=2 << 30) as running:
        start_store(running)
        server = S3Server(f"http://{running.addresses['store']}:8333")
        spec = {"name": "", "make_bucket": "bucket", "keys_of": "bucket"}
        running.drive("head", DRIVERS / "bucket.py", [json.dumps(spec)], env=server.env)
        yield running


def search(cluster: Cluster, **spec: Any) -> dict[str, Any]:
    """Only the driver has the settings of the store."""
    server = S3Server(f"http://{cluster.addresses['store']}:8333")
    asked = json.dumps({"sync": {"upload_dir": URL}, **spec})
    return cluster.drive("head", DRIVERS / "own_syncer.py", [asked], env=server.env)


def at_mirror(found: dict[str, Any]) -> set[str]:
    """`TRIAL/checkpoint_…` of what has files there."""
    keys = [key.split("/") for key in found["keys"] if not key.startswith(".tune_sync")]
    return {f"{k[0]}/{k[1]}" for k in keys if len(k) > 2 and k[1].startswith("checkpoint_")}


def assert_mirrored(found: dict[str, Any], steps: range, keep: int) -> None:
    assert_sound(found)
    assert {t["reported"][-1]["node"] for t in found["trials"]} == {"w1", "w2"}
    for trial in found["trials"]:
        stored = stored_digests(trial)
        assert sorted(stored) == list(steps)[-keep:]
        assert stored.items() <= reported_digests(trial).items()
    assert at_mirror(found) == set(found["published"])


@pytest.mark.slow
@pytest.mark.parametrize("syncer", ["command", "callback", "old"])
def test_what_a_syncer_has_sent_from_the_drivers_host_comes_back_when_its_disk_is_lost(
    cluster: Cluster, syncer: str
) -> None:
    kept = {"num_to_keep": 2}
    first = search(cluster, name=syncer, syncer=syncer, trials=TRIALS, checkpoint=kept)
    assert len(first["errors"]) == 2
    assert_mirrored(first, range(3), 2)

    cluster.exec("head", ["rm", "-r", first["path"]])
    again = search(cluster, name=syncer, syncer=syncer, restore=first["path"], fetch=True)
    assert again["errors"] == []
    assert {t["reported"][-1]["resumed_at"] for t in again["trials"]} == {3}
    assert_mirrored(again, range(5), 2)
