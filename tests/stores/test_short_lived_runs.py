"""Searches whose keys live for seconds; and one whose keys are refused for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune

from tests.hosts.drivers.trainables import train_n, whole_digest
from tests.stores.proxy import Faults, proxy
from tests.stores.seaweed import seaweed
from tests.stores.test_short_lived_keys import (
    LIFE_S,
    USERS,
    ExpiringHandler,
    Keys,
    make_bucket,
    renewed,
)
from tune_sync import RunConfig, SyncConfig

STEPS = 12
REFUSED_S = 8.0


class BreakableKeys(Keys):
    """While `refuses` is set, no key is good."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = threading.Event()

    def is_valid(self, key: str) -> bool:
        return not self.refuses.is_set() and super().is_valid(key)


class Place:
    """A store that takes short-lived keys; `seen` are those that it was shown."""

    def __init__(self, keys: BreakableKeys, seen: set[str]) -> None:
        self.keys = keys
        self.seen = seen


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Ray whose workers find the keys in files that are written again and again."""
    top = tmp_path_factory.mktemp("keys")
    (top / "config").write_text(f"[profile team]\ncredential_process = cat {top}/answer.json\n")
    place = Place(BreakableKeys(), set())
    with (
        seaweed(tmp_path_factory.mktemp("weed"), users=USERS) as server,
        proxy(server.endpoint_url, Faults(), ExpiringHandler, **vars(place)) as url,
        renewed(place.keys, top),
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
        yield place
        ray.shutdown()


def search(name: str, tmp_path: Path, **fields: Any) -> None:
    """One trial; all that it reports is stored, and restores."""
    sync = SyncConfig(
        upload_dir="s3://bucket/results", staging_dir=staging(fields, tmp_path), **fields
    )
    space = {"settings": {"steps": STEPS, "pause_s": 2 * LIFE_S / STEPS * 1.5}}
    config = RunConfig(name=name, verbose=0, sync_config=sync)
    results = tune.Tuner(train_n, param_space=space, run_config=config).fit()
    assert not results.errors
    (result,) = tune.Tuner.restore(f"s3://bucket/results/{name}", train_n).get_results()
    assert len(result.best_checkpoints) == STEPS
    for checkpoint, metrics in result.best_checkpoints:
        with checkpoint.as_directory() as local:
            Path(local, "empty").mkdir(exist_ok=True)  # Ray reads the bucket by itself here
            assert whole_digest(local) == metrics["digest"]


def staging(fields: dict[str, Any], tmp_path: Path) -> Path | None:
    return tmp_path / "staging" if fields else None


def test_a_run_outlives_its_keys(place: Place, tmp_path: Path) -> None:
    place.seen.clear()
    search("renewed", tmp_path)
    assert len(place.seen) >= 3


def test_what_is_reported_while_all_keys_are_refused_is_stored_when_they_are_not(
    place: Place, tmp_path: Path
) -> None:
    begin = threading.Timer(4.0, place.keys.refuses.set)
    end = threading.Timer(4.0 + REFUSED_S, place.keys.refuses.clear)
    begin.start()
    end.start()
    try:
        search("refused", tmp_path, on_sync_error="continue", sync_timeout=60)
    finally:
        end.join()
