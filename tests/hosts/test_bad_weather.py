"""A bucket that throttles, drops, delays and forbids, for hosts that share nothing but it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.bed import Cluster
from tests.bed.errors import DriverError
from tests.hosts.drivers.bucket import BEGUN
from tests.hosts.searches import DRIVERS
from tests.hosts.stores import start_proxy, start_store
from tests.stores.proxy import FAULTS, write_faults
from tests.stores.seaweed import S3Server

pytestmark = pytest.mark.hosts

URL = "s3://bucket/results"
STEPS = 8
SOON_S = 150.0
WEATHER = {"share": 0.1, "kinds": FAULTS, "delay_s": 0.02}
# Credentials are read again once for a request, so no request, with its pauses, shall meet two.
EXPIRES_EVERY_S = 20.0
USERS = {"reader": ["Read", "List"], "writer": ["Write:bucket", "List:bucket"]}


class Place(NamedTuple):
    """A cluster, and a store beside it.

    Attributes:
        cluster: Two workers; the store is on a host of its own.
        server: The store.
        behind_proxy: The same, through the proxy.
        faults: The file that says what the proxy does.
        begun: The file that is there once a driver has looked at the bucket.
    """

    cluster: Cluster
    server: S3Server
    behind_proxy: S3Server
    faults: Path
    begun: Path

    def drive(self, **spec: Any) -> dict[str, Any]:
        return self.cluster.drive(
            "head", DRIVERS / "bucket.py", [json.dumps(spec)], env=self.server.env, timeout_s=240
        )

    def keys(self) -> list[str]:
        """All objects of the bucket."""
        return list(map(str, self.drive(keys_of="bucket", make_bucket="bucket")["keys"]))


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with Cluster(worker_count=2, bare_hosts=["store"], disk_bytes=2 << 30) as running:
        endpoint_url = start_store(running, USERS)
        url, faults = start_proxy(running, endpoint_url)
        begun = running.host("head").path(str(BEGUN))
        yield Place(running, S3Server(endpoint_url), S3Server(url), faults, begun)


@contextmanager
def weather(place: Place) -> Iterator[None]:
    """All that HTTP can do to a request, and now and then an expired token.

    From when the run has begun: a place that cannot be used has to be told soon, so that is looked
    at twice only.
    """
    over = threading.Event()

    def blow() -> None:
        while not place.begun.exists() and not over.wait(0.05):
            continue
        while not over.is_set():
            write_faults(place.faults, **WEATHER, planned=["expired"])
            over.wait(EXPIRES_EVERY_S)

    place.begun.unlink(missing_ok=True)
    thread = threading.Thread(target=blow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        write_faults(place.faults)


def test_every_checkpoint_is_stored_through_bad_weather_and_restores(place: Place) -> None:
    trials = [
        {"host": name, "steps": STEPS + 2, "fail_at": STEPS, "file_count": 12, "pause_s": 0.3}
        for name in ("w1", "w2")
    ]
    sync = {"upload_dir": URL, "storage_options": place.behind_proxy.options}
    place.keys()
    with weather(place):
        found = place.drive(name="exp", trials=trials, sync=sync)
    failed = set(place.faults.with_suffix(".failed").read_text().split("\n"))
    assert {*FAULTS, "expired"} <= failed
    assert [t["node"] for t in found["trials"]] == ["w1", "w2"]
    for trial in found["trials"]:
        assert "as told to" in trial["error"]
        assert len(trial["stored"]) == STEPS
    check_digests(found)
    again = place.drive(name="exp", restore=f"{URL}/exp", sync={}, ship=True)
    assert [t["resumed_at"] for t in again["trials"]] == [STEPS, STEPS]
    assert [(t["error"], t["step"]) for t in again["trials"]] == [("", STEPS + 1)] * 2
    assert [len(t["stored"]) for t in again["trials"]] == [STEPS + 2] * 2
    check_digests(again)


def check_digests(found: dict[str, Any]) -> None:
    for trial in found["trials"]:
        assert all(digest == reported for digest, reported in trial["stored"])


@pytest.mark.parametrize("user", USERS)
def test_a_bucket_that_forbids_is_told_once_before_training(place: Place, user: str) -> None:
    before = place.keys()
    place.begun.unlink(missing_ok=True)
    options = {**place.server.options, "key": user, "secret": f"{user}-secret"}
    sync = {"upload_dir": URL, "storage_options": options}
    start_s = time.monotonic()
    with pytest.raises(DriverError) as refusal:
        place.drive(name="forbidden", trials=[{"steps": 1}], sync=sync)
    assert time.monotonic() - start_s < SOON_S
    assert not place.begun.exists()
    output = refusal.value.output
    (told,) = [line for line in output.splitlines() if line.startswith("tune_sync.errors.")]
    assert told.startswith("tune_sync.errors.StoreDeniedError")
    assert f"{URL}/forbidden" in told and "may not do that" in told
    assert f"{user}-secret" not in output
    assert place.keys() == before
