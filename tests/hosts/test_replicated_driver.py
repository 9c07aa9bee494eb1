"""The driver's host, which has the other copies, loses power before a bucket was reached."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.bed import Cluster, DriverError
from tests.hosts.drivers.replicated import FIRST_GENERATION
from tests.hosts.searches import DRIVERS, wait_for
from tests.hosts.stores import HOST, PORTS, start_store
from tests.hosts.test_replicated import staged
from tests.hosts.test_replicated_bucket import MEMORY, NOTES, Bed, assert_stored
from tests.stores.seaweed import S3Server
from tune_sync.homes.bucket.lease import BUCKET_LEASE_TTL_S

pytestmark = [pytest.mark.hosts, pytest.mark.slow]

NAME = "headless"
ROOT = f"bucket/results/{NAME}"
MANIFESTS = ".tune_sync/manifests/"
REPORTS_COUNT = 5


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    """Ray's head, the driver, a worker and a store, each on a host of its own."""
    notes = Path(tempfile.mkdtemp(prefix="notes-", dir=tmp_path))
    with Cluster(
        worker_count=1, driver_host=True, bare_hosts=[HOST], disk_bytes=2 << 30,
        mounts={"w1": {NOTES: notes}}, env=S3Server(f"http://{HOST}:{PORTS[0]}").env,
    ) as cluster:  # fmt: skip
        start_store(cluster)
        ask_bucket(cluster, make_bucket="bucket")
        yield Bed(cluster, notes)


def ask_bucket(cluster: Cluster, keys_of: str = "bucket", **more: Any) -> list[str]:
    """Keys in the bucket, as its own host sees them, whose cable may be cut."""
    spec = {"name": "", "keys_of": keys_of, **more}
    keys: list[str] = cluster.drive(HOST, DRIVERS / "bucket.py", [json.dumps(spec)])["keys"]
    return keys


def stored(keys: list[str]) -> set[str]:
    """Checkpoints of which all is in the bucket."""
    sealed = {key.split("/")[-3] for key in keys if key.endswith("/seal.json")}
    published = {Path(key).stem for key in keys if key.startswith(MANIFESTS)}
    return sealed | published


def drive(bed: Bed, driver: str, **spec: Any) -> dict[str, Any]:
    arguments = [json.dumps({"name": NAME, "fast_path": MEMORY, **spec})]
    script = DRIVERS / "replicated.py"
    return bed.cluster.drive(driver, script, arguments, env=FIRST_GENERATION | STATE, timeout_s=150)


STATE = {"TUNE_GLOBAL_CHECKPOINT_S": "0.3"}


def test_what_was_reported_outlives_the_host_of_the_driver(bed: Bed) -> None:
    """A restore elsewhere goes on from the newest, of which the worker's memory had the copy left.

    The bucket has the first ones at most, as it is out of reach until the host has gone.
    """
    cluster = bed.cluster
    sync = {"max_bandwidth_bytes_per_s": 300_000}  # five seconds each
    run = {"steps": REPORTS_COUNT + 2, "hold_at": REPORTS_COUNT, "pause_s": 2.0, "sync": sync}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(drive, bed, "driver", host="w1", **run)
        wait_for(lambda: bool(bed.notes(NAME, "reported")) or running.done(), "a report")
        keys: list[str] = []
        while not any("experiment_state" in key for key in keys) and not running.done():
            keys = ask_bucket(cluster, ROOT)
        cluster.cut(HOST)
        wait_for(
            lambda: len(bed.notes(NAME, "reported")) == REPORTS_COUNT or running.done(), "reports"
        )
        cluster.kill("driver")
        with pytest.raises(DriverError):
            running.result()
    cluster.wait_dead("driver")
    # The restore may take it now; and the worker's agent waits for that some more.
    before = stored(ask_bucket(cluster, ROOT, age_s=BUCKET_LEASE_TTL_S))
    steps = {f"checkpoint_{step:06d}" for step in range(REPORTS_COUNT)}
    assert len(steps - before) >= 2, "hardly anything would be lost"
    assert steps - before <= staged(cluster, "w1")

    cluster.heal(HOST)
    found = drive(bed, "head", restore=True, host="w1")
    first, second = bed.notes(NAME, "start")
    assert (first["first"], second["first"]) == (0, REPORTS_COUNT), "it lost what was reported"
    (newest,) = [n for n in bed.notes(NAME, "reported") if n["step"] == REPORTS_COUNT - 1]
    assert second["digest"] == newest["digest"]
    assert_stored(bed, NAME, found)
    assert len(found["published"]) == REPORTS_COUNT + 2
    wait_for(lambda: not staged(cluster, "w1"), "staging to be free")
