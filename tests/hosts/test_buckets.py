"""Results in a bucket: hosts that share nothing write to it, and a new cluster goes on from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.bed import Cluster, DriverError
from tests.hosts.drivers.trainables import GO_ON
from tests.hosts.searches import DRIVERS, wait_for
from tests.hosts.stores import show_account, start_google, start_proxy, start_store
from tests.hosts.test_behind import staged_on
from tests.stores.proxy import write_faults
from tests.stores.seaweed import S3Server

pytestmark = pytest.mark.hosts

URL = "s3://bucket/results"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two workers, and a store on a host of its own."""
    with Cluster(worker_count=2, bare_hosts=["store"], disk_bytes=2 << 30) as running:
        start_store(running)
        yield running


def drive(cluster: Cluster, host: str = "head", **spec: Any) -> dict[str, Any]:
    """Workers get the settings of the store from `storage_options`, or with `ship` from Ray."""
    server = S3Server(f"http://{cluster.addresses['store']}:8333")
    options = {"storage_options": server.options} if "restore" not in spec else {}
    spec.setdefault("sync", {"upload_dir": URL, **options})
    arguments = [json.dumps(spec)]
    return cluster.drive(host, DRIVERS / "bucket.py", arguments, env=server.env)


def checkpoints(found: dict[str, Any]) -> list[str]:
    """`checkpoint_…` of each trial that has any object, in the order of trials."""
    return sorted({"/".join(k.split("/")[:2]) for k in found["keys"] if "/checkpoint_" in k
                   and not k.startswith(".tune_sync")})  # fmt: skip


@pytest.fixture(scope="module")
def first(cluster: Cluster) -> dict[str, Any]:
    """Two trials on two workers; each fails after three checkpoints, and keeps one."""
    trials = [
        {"host": "w1", "steps": 5, "fail_at": 3, "file_count": 30},
        {"host": "w2", "steps": 5, "fail_at": 3, "blob_bytes": 40 << 20},
    ]
    return drive(
        cluster, name="exp", make_bucket="bucket", trials=trials, checkpoint={"num_to_keep": 1}
    )


def test_workers_store_into_the_bucket_and_only_what_is_kept_stays(first: dict[str, Any]) -> None:
    assert first["path"] == "bucket/results/exp"
    assert [t["node"] for t in first["trials"]] == ["w1", "w2"]
    for trial in first["trials"]:
        assert "as told to" in trial["error"]
        assert trial["digest"] == trial["reported"]  # empty directories included
        assert trial["step"] == 2
    assert [name.rsplit("/", 1)[-1] for name in checkpoints(first)] == ["checkpoint_000002"] * 2
    ours = [key for key in first["keys"] if key.startswith(".tune_sync/")]
    assert sorted(key.split("/")[1] for key in ours) == [
        "format.json",
        "manifests",
        "manifests",
        "tuner.pkl",
    ]


def test_nothing_is_left_on_the_hosts(cluster: Cluster, first: dict[str, Any]) -> None:
    for name in ("head", "w1", "w2"):
        assert not [path for path in cluster.tree(name, "~") if "checkpoint_" in path]


def test_a_new_cluster_goes_on_from_the_url_and_from_a_copy(
    cluster: Cluster, first: dict[str, Any]
) -> None:
    for name in ("head", "w1", "w2"):
        cluster.kill(name)
    cluster.start("head", "w1", "w2")
    copied = drive(
        cluster, restore="s3://bucket/moved/exp", name="exp",
        copy=["bucket/results/exp", "bucket/moved/exp"], sync={}, ship=True,
    )  # fmt: skip
    found = drive(cluster, restore=f"{URL}/exp", name="exp", sync={}, ship=True)
    for again in (copied, found):
        assert [t["resumed_at"] for t in again["trials"]] == [3, 3]
        assert [t["step"] for t in again["trials"]] == [4, 4]
        assert [t["error"] for t in again["trials"]] == ["", ""]
        assert [t["digest"] for t in again["trials"]] == [t["reported"] for t in again["trials"]]
        names = [name.rsplit("/", 1)[-1] for name in checkpoints(again)]
        assert names == ["checkpoint_000004"] * 2
    assert copied["path"] == "bucket/moved/exp"


@contextmanager
def without_a_way(cluster: Cluster, name: str) -> Iterator[None]:
    """A host that cannot reach the store."""
    route = ["unreachable", cluster.addresses["store"]]
    cluster.exec(name, ["ip", "route", "add", *route])
    try:
        yield
    finally:
        cluster.exec(name, ["ip", "route", "del", *route])


def test_a_node_that_cannot_use_the_bucket_is_told_before_training(cluster: Cluster) -> None:
    server = S3Server(f"http://{cluster.addresses['store']}:8333")
    sync = {"upload_dir": URL, "storage_options": {**server.options, "tries_count": 2}}
    trials = [{"host": "w1", "steps": 1}]
    with without_a_way(cluster, "w2"):
        with pytest.raises(DriverError) as refusal:
            drive(cluster, name="lame", make_bucket="bucket", trials=trials, sync=sync)
        found = drive(
            cluster, name="limping", trials=trials, sync={**sync, "on_sync_error": "continue"}
        )
    (told,) = [t for t in refusal.value.output.splitlines() if t.startswith("tune_sync.errors.")]
    of = f"{URL}/lame cannot be used by 1 of 2 nodes. node "
    assert told.startswith(f"tune_sync.errors.StoreUnreachableError: {of}")
    assert f"({cluster.addresses['w2']}): " in told and cluster.addresses["w1"] not in told
    assert [(t["step"], t["error"]) for t in found["trials"]] == [(0, "")]


def test_trials_may_have_the_drivers_keys_from_ray(cluster: Cluster) -> None:
    """No other process on their nodes has any."""
    server = S3Server(f"http://{cluster.addresses['store']}:8333")
    options = {k: v for k, v in server.options.items() if k not in ("key", "secret")}
    sync = {"upload_dir": URL, "storage_options": options}
    trials = [{"host": "w1", "steps": 1}]
    found = drive(cluster, name="given", make_bucket="bucket", trials=trials, sync=sync)
    assert [(t["step"], t["error"]) for t in found["trials"]] == [(0, "")]


GOOGLE_URL = "gs://bucket/results"


@pytest.mark.slow  # tests/stores has it on one machine
def test_hosts_store_into_a_bucket_of_googles_and_new_ones_go_on_from_it(cluster: Cluster) -> None:
    server = start_google(cluster)
    workers = ("head", "w1", "w2")

    def search(**spec: Any) -> dict[str, Any]:
        show_account(cluster, *workers)
        asked = json.dumps({"name": "exp", "scheme": "gs", "ship": True, **spec})
        return cluster.drive("head", DRIVERS / "bucket.py", [asked], env=server.env)

    trials = [
        {"host": "w1", "steps": 5, "fail_at": 3, "file_count": 30},
        {"host": "w2", "steps": 5, "fail_at": 3, "blob_bytes": 12 << 20},
    ]
    kept = {"num_to_keep": 1}
    first = search(trials=trials, checkpoint=kept, sync={"upload_dir": GOOGLE_URL})
    assert [t["node"] for t in first["trials"]] == ["w1", "w2"]
    assert all("as told to" in t["error"] for t in first["trials"])
    for name in workers:
        assert not [path for path in cluster.tree(name, "~") if "checkpoint_" in path]

    for name in workers:
        cluster.kill(name)
    cluster.start(*workers)
    again = search(restore=f"{GOOGLE_URL}/exp", sync={})
    assert [t["resumed_at"] for t in again["trials"]] == [3, 3]
    assert [t["step"] for t in again["trials"]] == [4, 4]
    assert [t["error"] for t in again["trials"]] == ["", ""]
    for found, last in ((first, 2), (again, 4)):
        assert [t["digest"] for t in found["trials"]] == [t["reported"] for t in found["trials"]]
        names = [name.rsplit("/", 1)[-1] for name in checkpoints(found)]
        assert names == [f"checkpoint_00000{last}"] * 2


@pytest.mark.slow
def test_training_goes_on_while_the_store_is_down_and_all_arrives_when_it_is_back(
    cluster: Cluster,
) -> None:
    server = S3Server(f"http://{cluster.addresses['store']}:8333")
    url, faults = start_proxy(cluster, server.endpoint_url)
    options = {**server.options, "endpoint_url": url, "request_timeout_s": 10, "tries_count": 2}
    sync = {
        "upload_dir": URL, "storage_options": options, "on_sync_error": "continue",
        "sync_timeout": 60,
    }  # fmt: skip
    workers, later = ("w1", "w2"), {f"checkpoint_00000{step}" for step in (1, 2, 3)}
    trials = [{"host": host, "steps": 4, "told_at": 1} for host in workers]

    def stored_count() -> int:
        spec = json.dumps({"name": "", "make_bucket": "bucket", "keys_of": "bucket"})
        keys = cluster.drive("head", DRIVERS / "bucket.py", [spec], env=server.env)["keys"]
        return sum(k.startswith("results/down/.tune_sync/manifests/") for k in keys)

    def go_on() -> None:
        for name in workers:
            cluster.exec(name, ["touch", GO_ON])

    assert stored_count() == 0
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(drive, cluster, name="down", trials=trials, sync=sync)
        try:
            wait_for(lambda: running.done() or stored_count() == 2, "the first of each trial")
            write_faults(faults, is_down=True)
            go_on()
            wait_for(
                lambda: running.done() or all(later <= {*staged_on(cluster, n)} for n in workers),
                "the others to be staged",
            )
            assert not running.done()
        finally:
            go_on()
            write_faults(faults)
        found = running.result()
    assert "reset" in faults.with_suffix(".failed").read_text()
    assert [t["error"] for t in found["trials"]] == ["", ""]
    assert stored_count() == 8
    for trial in found["trials"]:
        assert len(trial["stored"]) == 4
        assert all(there == reported for there, reported in trial["stored"])
