"""Searches whose keys live for seconds; and one whose keys are refused for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import ray
from ray import tune

from tests.hosts.drivers.trainables import train_n, whole_digest
from tests.stores.proxy import Faults, proxy
from tests.stores.seaweed import S3Server, s3, seaweed
from tests.stores.test_short_lived_keys import (
    LIFE_S,
    ExpiringHandler,
    Keys,
    make_bucket,
    renewed,
)
from tune_sync import RunConfig, SyncConfig, restore_kwargs

STEPS = 12
MANY = {f"key{number}": ["Admin", "Read", "Write", "List"] for number in range(300)}
REFUSED_S = 6.0
START_S = 200.0
URL = "s3://bucket/results"


class BreakableKeys(Keys):
    """While `refuses` is set, no key is good."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = threading.Event()
        self.refused_count = 0

    def is_valid(self, key: str) -> bool:
        if self.refuses.is_set():
            self.refused_count += 1
            return False
        return super().is_valid(key)


class Place(NamedTuple):
    """A store that takes short-lived keys.

    Attributes:
        server: The store.
        keys: Those that are good now.
        seen: Those that it was shown.
    """

    server: S3Server
    keys: BreakableKeys
    seen: set[str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Ray whose workers find the keys in files that are written again and again."""
    top = tmp_path_factory.mktemp("keys")
    (top / "config").write_text(f"[profile team]\ncredential_process = cat {top}/answer.json\n")
    keys, seen = BreakableKeys(), set[str]()
    with (
        seaweed(tmp_path_factory.mktemp("weed"), users=MANY) as server,
        proxy(server.endpoint_url, Faults(), ExpiringHandler, keys=keys, seen=seen) as url,
        renewed(keys, top),
        pytest.MonkeyPatch.context() as patch,
    ):
        make_bucket(server)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.delenv(name, raising=False)
        settings = {
            "AWS_PROFILE": "team", "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": url,
            "AWS_CONFIG_FILE": str(top / "config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(top / "none"),
        }  # fmt: skip
        for name, value in settings.items():
            patch.setenv(name, value)
        ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=200_000_000)
        yield Place(server, keys, seen)
        ray.shutdown()


def search(name: str, **fields: Any) -> None:
    """One trial; all that it reports is stored, and restores."""
    sync = SyncConfig(upload_dir=URL, **fields)
    space = {"settings": {"steps": STEPS, "pause_s": 2 * LIFE_S / STEPS * 1.5}}
    config = RunConfig(name=name, verbose=0, sync_config=sync)
    results = tune.Tuner(train_n, param_space=space, run_config=config).fit()
    assert not results.errors
    # Through tune_sync: pyarrow would hold the lock of this process, in which the proxy is.
    given = restore_kwargs(f"{URL}/{name}")
    (result,) = tune.Tuner.restore(trainable=train_n, **given).get_results()
    assert len(result.best_checkpoints) == STEPS
    for checkpoint, metrics in result.best_checkpoints:
        with checkpoint.as_directory() as local:
            assert whole_digest(local) == metrics["digest"]


def test_a_run_outlives_its_keys(place: Place) -> None:
    place.seen.clear()
    search("renewed")
    assert len(place.seen) >= 3


def refuse_for_a_while(place: Place, name: str) -> None:
    """From when a checkpoint is stored."""
    start = f"results/{name}/.tune_sync/manifests/"
    deadline_s = time.monotonic() + START_S
    while not s3(place.server).list_objects_v2(Bucket="bucket", Prefix=start).get("Contents"):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    place.keys.refuses.set()
    time.sleep(REFUSED_S)
    place.keys.refuses.clear()


def test_what_is_reported_while_all_keys_are_refused_is_stored_when_they_are_not(
    place: Place, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(refuse_for_a_while, place, "refused")
        search(
            "refused", on_sync_error="continue", staging_dir=tmp_path / "staging", sync_timeout=60
        )
        refused.result()
    assert place.keys.refused_count > 1
