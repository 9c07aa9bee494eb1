"""Searches whose bucket throttles, drops answers, goes away for a while: all is stored."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import ray
from ray import tune

from tests.hosts.drivers.trainables import train_n, whole_digest
from tests.stores.proxy import REFUSED_REWRITE, proxy_process, write_faults
from tests.stores.seaweed import S3Server, make_bucket, s3, seaweed
from tune_sync import RunConfig, SyncConfig

URL = "s3://bucket/results"
OUTAGE_S = 20.0
ENGINES = ("obstore", pytest.param("pyarrow", marks=pytest.mark.slow))


class Place(NamedTuple):
    """A store behind a proxy.

    Attributes:
        server: The store.
        options: For what goes through the proxy.
        faults: The file that says what the proxy does.
    """

    server: S3Server
    options: dict[str, Any]
    faults: Path

    def failed(self) -> Counter[str]:
        """Fault -> how often it came."""
        return Counter(self.faults.with_suffix(".failed").read_text().split("\n")[:-1])

    def keys(self, name: str) -> list[str]:
        start = f"results/{name}/"
        pages = s3(self.server).get_paginator("list_objects_v2")
        found = pages.paginate(Bucket="bucket", Prefix=start)
        keys = [o["Key"].removeprefix(start) for page in found for o in page.get("Contents", [])]
        return [key for key in keys if not key.endswith("/")]  # pyarrow puts these for directories

    def open_uploads(self) -> list[Any]:
        found = s3(self.server).list_multipart_uploads(Bucket="bucket")
        return list(found.get("Uploads", []))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    top = tmp_path_factory.mktemp("rough")
    with seaweed(top / "weed") as server, proxy_process(server.endpoint_url, top / "faults") as url:
        make_bucket(server)
        ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=200_000_000)
        yield Place(server, {**server.options, "endpoint_url": url}, top / "faults")
        ray.shutdown()


@pytest.fixture
def place(running: Place) -> Iterator[Place]:
    running.faults.with_suffix(".failed").write_text("")
    yield running
    write_faults(running.faults)


def search(
    place: Place, name: str, settings: dict[str, Any], keep: int | None = None, **faults: Any
) -> Any:
    """Two trials with these faults; every checkpoint that is stored is what was reported."""
    config: Any = RunConfig(
        name=name, verbose=0, sync_config=SyncConfig(upload_dir=URL, storage_options=place.options)
    )
    config.checkpoint_config = tune.CheckpointConfig(num_to_keep=keep)
    space = {"settings": settings, "number": tune.grid_search([0, 1])}
    tuner = tune.Tuner(train_n, param_space=space, run_config=config)  # tries only twice
    if faults:
        write_faults(place.faults, **faults)
    results = tuner.fit()
    assert not results.errors
    write_faults(place.faults)
    for result in results:
        assert result.metrics["step"] == settings["steps"] - 1
        for checkpoint, metrics in result.best_checkpoints:
            with checkpoint.as_directory() as local:
                assert whole_digest(local) == metrics["digest"]
    check_tidy(place, name, 2 * min(settings["steps"], keep or settings["steps"]))
    return results


def check_tidy(place: Place, name: str, checkpoints_count: int) -> None:
    """All checkpoints are there, and nothing else of a checkpoint is."""
    keys = place.keys(name)
    names = {"/".join(k.split("/")[:2]) for k in keys if "/checkpoint_" in k and k[0] != "."}
    assert len(names) == checkpoints_count
    manifests = {
        k.removeprefix(".tune_sync/manifests/").removesuffix(".json")
        for k in keys if k.startswith(".tune_sync/manifests/")
    }  # fmt: skip
    assert manifests == names
    assert {k.split("/")[1] for k in keys if k.startswith(".tune_sync/")} == {
        "format.json", "manifests", "tuner.pkl"
    }  # fmt: skip
    assert place.open_uploads() == []


@pytest.mark.parametrize("engine", ENGINES)
def test_a_tenth_of_all_requests_fails_and_every_checkpoint_is_stored(
    place: Place, engine: str
) -> None:
    place.options["engine"] = engine
    search(place, f"tenth-{engine}", {"steps": 10, "file_count": 12}, share=0.1)
    assert set(place.failed()) == {"503", "500", "429", "reset", "late reset", "cut"}


@pytest.mark.parametrize("engine", ENGINES)
def test_large_files_are_stored_though_a_tenth_of_all_requests_fails(
    place: Place, engine: str
) -> None:
    place.options["engine"] = engine
    # Where the answer to the start of an upload is lost, nobody can end that upload.
    kinds = ["503", "500", "429", "reset"]
    settings = {"steps": 2, "blob_bytes": 40 << 20}
    search(place, f"large-{engine}", settings, keep=1, share=0.1, kinds=kinds)
    assert sum(place.failed().values()) > 3


@pytest.mark.slow
def test_an_outage_of_twenty_seconds_is_seen_through(place: Place) -> None:
    place.options["engine"] = "obstore"
    down = threading.Timer(4.0, write_faults, [place.faults], {"is_down": True})
    up = threading.Timer(4.0 + OUTAGE_S, write_faults, [place.faults])
    down.start()
    up.start()
    search(place, "outage", {"steps": 14, "pause_s": 0.5, "file_count": 8}, keep=3)
    up.join()
    assert place.failed()["reset"] > 3


def test_only_what_is_kept_stays_of_many_checkpoints(place: Place) -> None:
    place.options["engine"] = "obstore"
    search(place, "kept", {"steps": 10, "file_count": 3}, keep=2)
    names = {k.split("/")[1] for k in place.keys("kept") if "/checkpoint_" in k and k[0] != "."}
    assert names == {"checkpoint_000008", "checkpoint_000009"}


@pytest.mark.parametrize("engine", ENGINES)
def test_state_that_changes_all_the_time_is_not_put_more_often_than_a_store_allows(
    place: Place, engine: str
) -> None:
    # As one checkpoint is kept, each new one has Ray save the state.
    place.options["engine"] = engine
    settings = {"steps": 4}
    search(place, f"rewritten-{engine}", settings, keep=1, rewrite_s=1.0)
    assert place.failed()[REFUSED_REWRITE] == 0


@pytest.mark.slow
@pytest.mark.parametrize("faults", [{"delay_s": 5.0}, {"bytes_per_s": 200 << 10}])
def test_a_slow_store_stores_twenty_mebibytes_by_default(
    place: Place, faults: dict[str, float]
) -> None:
    place.options["engine"] = "obstore"
    search(place, f"slow-{next(iter(faults))}", {"steps": 1, "blob_bytes": 20 << 20}, **faults)
