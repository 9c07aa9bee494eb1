"""A bucket that cannot be used is told when the Tuner is made: one error, soon, no object put."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from ray import tune

from tests.hosts.drivers.trainables import train_n
from tests.stores.proxy import Faults, proxy
from tests.stores.seaweed import S3Server, make_bucket, s3, seaweed
from tune_sync import RunConfig, SyncConfig
from tune_sync.errors import ConfigError, StoreDeniedError, StoreFullError, StoreUnreachableError

USERS = {
    "reader": ["Read", "List"],
    "writer": ["Write"],
    "stranger": ["Read:o", "Write:o", "List:o"],
}
SOON_S = 150.0
ENGINES = ("obstore", "pyarrow")
BY_DEFAULT = pytest.param({}, marks=pytest.mark.slow)

pytestmark = pytest.mark.parametrize("engine", ENGINES)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweed(tmp_path_factory.mktemp("weed"), users=USERS) as running:
        make_bucket(running)
        yield running


def keys(server: S3Server) -> list[str]:
    found = s3(server).list_objects_v2(Bucket="bucket")
    return [entry["Key"] for entry in found.get("Contents", [])]


def refused(
    server: S3Server,
    error: type[Exception],
    says: str,
    url: str = "s3://bucket/runs",
    **options: Any,
) -> str:
    """Make a Tuner, and see it refused; returns the message."""
    start_s = time.monotonic()
    sync = SyncConfig(upload_dir=url, storage_options={**server.options, **options})
    with pytest.raises(error, match=says) as refusal:
        tune.Tuner(train_n, run_config=RunConfig(name="exp", sync_config=sync))
    assert time.monotonic() - start_s < SOON_S
    assert keys(server) == []
    assert "secret" not in str(refusal.value)
    return str(refusal.value)


@pytest.mark.parametrize("user", USERS)
def test_a_user_who_may_not_do_all_that_is_needed(server: S3Server, engine: str, user: str) -> None:
    secret = f"{user}-secret"
    refused(
        server, StoreDeniedError, "may not do that: reading, writing", engine=engine,
        key=user, secret=secret,
    )  # fmt: skip


def test_a_missing_bucket_is_not_made(server: S3Server, engine: str) -> None:
    for _ in range(2):
        told = refused(server, ConfigError, "create", url="s3://nowhere/runs", engine=engine)
        assert f"(asked: {server.endpoint_url}, region us-east-1)" in told


@pytest.mark.parametrize("wrong", ["key", "secret"])
def test_wrong_keys(server: S3Server, engine: str, wrong: str) -> None:
    refused(server, StoreDeniedError, "credentials", engine=engine, **{wrong: "wrong"})


@pytest.mark.parametrize("fault", ["moved", "malformed", "illegal"])
@pytest.mark.parametrize("region", ["eu-north-1", ""])
def test_another_region(server: S3Server, engine: str, fault: str, region: str) -> None:
    with proxy(server.endpoint_url, Faults(share=1.0, kinds=[fault])) as url:
        told = refused(
            server, ConfigError, "another region", engine=engine, endpoint_url=url, region=region
        )
    assert f"(asked: {url}, region {region or 'not given'});" in told
    assert "set AWS_REGION, or storage_options={'region': ...}" in told
    assert told.endswith("is the endpoint right?")


@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        ("expired", StoreDeniedError, "renew them"),
        ("skewed", StoreDeniedError, "the clock of this node is wrong: set it"),
        ("quota", StoreFullError, "make room"),
    ],
)
def test_what_else_a_store_refuses(
    server: S3Server, engine: str, fault: str, error: type[Exception], says: str
) -> None:
    with proxy(server.endpoint_url, Faults(share=1.0, kinds=[fault])) as url:
        refused(server, error, says, engine=engine, endpoint_url=url)


@pytest.mark.parametrize("host", ["127.0.0.1:9", "nohost.invalid"])
def test_nobody_there(server: S3Server, engine: str, host: str) -> None:
    url = f"http://{host}"
    told = refused(server, StoreUnreachableError, "endpoint", engine=engine, endpoint_url=url)
    assert f"(asked: {url}, region us-east-1)" in told


def test_https_where_http_is_spoken(server: S3Server, engine: str) -> None:
    url = server.endpoint_url.replace("http:", "https:")
    refused(server, StoreUnreachableError, "endpoint", engine=engine, endpoint_url=url)


@pytest.mark.parametrize("accepts", [True, False])
@pytest.mark.parametrize("limits", [{"request_timeout_s": 2, "connect_timeout_s": 2}, BY_DEFAULT])
def test_a_host_that_never_answers(
    server: S3Server, engine: str, accepts: bool, limits: dict[str, int]
) -> None:
    with silent_host(accepts) as url:
        refused(
            server, StoreUnreachableError, "endpoint", engine=engine, endpoint_url=url, **limits
        )


@contextmanager
def silent_host(accepts: bool) -> Iterator[str]:
    """Its connections are made, and nothing comes; or they are not even made."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100 if accepts else 0)
        waiting = [socket.socket() for _ in range(0 if accepts else 4)]
        for other in waiting:  # more than the queue of the listener takes
            other.setblocking(False)
            other.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        for other in waiting:
            other.close()
