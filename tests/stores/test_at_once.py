"""How many requests of a checkpoint are under way at once: ranges of large files, small files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from ray import tune

from tests.hosts.drivers.trainables import train_n, whole_digest
from tests.stores.proxy import Faults, proxy
from tests.stores.seaweed import S3Server
from tune_sync import RunConfig, SyncConfig

URL = "s3://bucket/results"
MIB = 1 << 20
LATENCY_S = 0.3  # far more than a busy machine needs for a request


class Seen(NamedTuple):
    """A stored checkpoint, behind a proxy with some latency that counts."""

    faults: Faults
    checkpoint: Any
    digest: str
    puts_count: int


@pytest.fixture
def seen(own_server: S3Server, request: pytest.FixtureRequest) -> Iterator[Seen]:
    """Fields of `param` are settings of the trial; `delay_s`: latency of the proxy."""
    settings = {"steps": 1, **request.param}
    faults = Faults(delay_s=settings.pop("delay_s", LATENCY_S))
    with proxy(own_server.endpoint_url, faults) as url:
        options = {**own_server.options, "endpoint_url": url}
        sync = SyncConfig(upload_dir=URL, storage_options=options)
        name = "-".join(map(str, request.param.values()))
        config = RunConfig(name=name, verbose=0, sync_config=sync)
        (result,) = tune.Tuner(train_n, param_space={"settings": settings}, run_config=config).fit()
        assert result.error is None
        puts = [line for line in faults.requests if line.startswith("PUT") and "/train_n" in line]
        of_files = [line for line in puts if ".tune_sync" not in line and "/checkpoint_" in line]
        yield Seen(faults, result.checkpoint, result.metrics["digest"], len(of_files))


@pytest.mark.parametrize("seen", [{"blob_bytes": 64 * MIB}], indirect=True)
def test_a_large_file_is_sent_in_parts_and_read_in_ranges_at_once(seen: Seen) -> None:
    assert seen.faults.most_at_once["PUT"] >= 3
    seen.faults.most_at_once.clear()
    seen.faults.requests.clear()
    with seen.checkpoint.as_directory() as local:
        assert whole_digest(local) == seen.digest
    assert seen.faults.most_at_once["GET"] >= 3
    assert len([line for line in seen.faults.requests if "blob.bin" in line]) >= 3


@pytest.mark.parametrize("seen", [{"file_count": 300}], indirect=True)
def test_small_files_are_sent_and_read_at_once_by_one_request_each(seen: Seen) -> None:
    assert seen.faults.most_at_once["PUT"] >= 16
    assert 300 <= seen.puts_count <= 310
    seen.faults.most_at_once.clear()
    seen.faults.requests.clear()
    with seen.checkpoint.as_directory() as local:
        assert whole_digest(local) == seen.digest
    assert seen.faults.most_at_once["GET"] >= 16
    reads = [line for line in seen.faults.requests if line.startswith("GET") and "/file_" in line]
    assert len(reads) == 300


@pytest.mark.parametrize("seen", [{"file_count": 10_000, "delay_s": 0.0}], indirect=True)
def test_ten_thousand_small_files_take_hardly_more_requests_than_files(seen: Seen) -> None:
    assert 10_000 <= len(seen.faults.requests) <= 10_200
    assert 10_000 <= seen.puts_count <= 10_010
    seen.faults.requests.clear()
    with seen.checkpoint.as_directory() as local:
        assert whole_digest(local) == seen.digest
    assert 10_000 <= len(seen.faults.requests) <= 10_100
