"""Searches whose results are on a disk that XRootD serves."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray import tune

from tests.hosts.drivers.trainables import whole_digest
from tests.local.trainables import stumbles
from tests.stores.xrootd import XrootdServer, xrootd
from tune_sync import RunConfig, SyncConfig, cleanup, restore_kwargs
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.renaming_bucket import ASIDE, ASIDE_S
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import (
    ConfigError,
    ExperimentExistsError,
    StoreDeniedError,
    StoreUnreachableError,
)

SOON_S = 150.0


@pytest.fixture(scope="module")
def server() -> Iterator[XrootdServer]:
    with xrootd() as running:
        yield running


@pytest.fixture(scope="module")
def top(server: XrootdServer) -> str:
    return server.url


@pytest.fixture(scope="module")
def cluster(top: str) -> Iterator[None]:
    ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=200_000_000)
    yield
    ray.shutdown()


def in_xrootd(top: str, name: str, **fields: Any) -> RunConfig:
    return RunConfig(
        name=name, verbose=0, sync_config=SyncConfig(upload_dir=f"{top}/results", **fields),
        checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
    )  # fmt: skip


@pytest.mark.parametrize("by_url", [True, False])
def test_a_search_is_stored_and_goes_on_from_its_url(top: str, cluster: None, by_url: bool) -> None:
    name = f"exp-{by_url}"
    url = f"{top}/results/{name}"
    assert len(tune.Tuner(stumbles, run_config=in_xrootd(top, name)).fit().errors) == 1
    with pytest.raises(ExperimentExistsError, match=r'restore_kwargs."root://'):
        tune.Tuner(stumbles, run_config=in_xrootd(top, name))
    given: dict[str, Any] = {"path": f"fsspec+{url}"} if by_url else restore_kwargs(url)
    (result,) = tune.Tuner.restore(trainable=stumbles, resume_errored=True, **given).fit()
    assert result.error is None
    assert (result.metrics["step"], result.metrics["resumed_at"]) == (5, 3)
    with result.checkpoint.as_directory() as local:
        assert whole_digest(local) == result.metrics["digest"]
    keys = [found.key for found in open_bucket(parse_bucket_url(url)).list("")]
    names = {k.split("/")[1] for k in keys if "/checkpoint_" in k and k[0] != "."}
    assert names == {"checkpoint_000004", "checkpoint_000005"}
    ours = {k.split("/")[1] for k in keys if k.startswith(".tune_sync/")}
    assert ours == {"format.json", "manifests", "tuner.pkl"}
    assert cleanup(url).dropped == ()


def refused(error: type[Exception], says: str, url: str, **options: Any) -> None:
    start_s = time.monotonic()
    sync = SyncConfig(upload_dir=url, storage_options=options)
    with pytest.raises(error, match=says):
        tune.Tuner(stumbles, run_config=RunConfig(name="exp", sync_config=sync))
    assert time.monotonic() - start_s < SOON_S


def test_what_cannot_be_used_is_told_before_training(top: str) -> None:
    refused(StoreDeniedError, "may not do that", top.replace("//data", "//elsewhere"))
    refused(ConfigError, "colour.*from the environment", top, colour="red")
    refused(StoreUnreachableError, "endpoint", "root://nohost.invalid//data")


@pytest.mark.slow  # the client looks at its clock every 15 seconds
def test_a_server_that_never_answers_is_told_before_training() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        refused(StoreUnreachableError, "endpoint", f"root://127.0.0.1:{silent.getsockname()[1]}//d")


def test_an_object_appears_whole_or_not_at_all(top: str) -> None:
    bucket = open_bucket(parse_bucket_url(f"{top}/whole"))
    bucket.put("x", b"old")

    def chunks() -> Iterator[bytes]:
        yield b"n" * (20 << 20)
        assert bucket.get("x") == b"old"
        raise RuntimeError("the trial is gone")

    with pytest.raises(RuntimeError, match="the trial is gone"):
        bucket.put_stream("x", chunks())
    assert bucket.get("x") == b"old"
    assert [found.key for found in bucket.list("")] == ["x"]


def test_what_a_killed_writer_left_is_no_object_and_goes_after_a_day(server: XrootdServer) -> None:
    bucket = open_bucket(parse_bucket_url(f"{server.url}/left"))
    bucket.put("x", b"1")
    for age_s in (0.0, ASIDE_S + 60):
        left = server.directory / f"left/{ASIDE}{age_s}"
        left.write_bytes(b"half")
        os.utime(left, (time.time() - age_s,) * 2)
    assert [found.key for found in bucket.list("")] == ["x"]
    bucket.check(tidies=True)
    assert [path.name for path in (server.directory / "left").glob(".*")] == [f"{ASIDE}0.0"]
