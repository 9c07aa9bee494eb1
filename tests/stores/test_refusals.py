"""What a real server refuses is told as what it is, and never as "not there"."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.stores.seaweed import S3Server
from tune_sync.buckets.bucket import Bucket
from tune_sync.buckets.opening import check_bucket, open_bucket
from tune_sync.buckets.retry import Retry
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import ConfigError, StoreDeniedError, StoreUnreachableError

# s3fs tries by itself for long before it says that nobody answers.
ENGINES = ("obstore", "pyarrow", pytest.param("fsspec", marks=pytest.mark.slow))
VERBS: dict[str, Callable[[Bucket], object]] = {
    "info": lambda b: b.info("x"),
    "list": lambda b: b.list("d"),
    "list_dir": lambda b: b.list_dir("d"),
    "get": lambda b: b.get("x"),
    "get of a range": lambda b: b.get("x", 1, 2),
    "put": lambda b: b.put("x", b"1"),
    "create": lambda b: b.put("x", b"1", create_only=True),
    "put_stream": lambda b: b.put_stream("x", [b"1"]),
    "delete": lambda b: b.delete(["x"]),
}

pytestmark = pytest.mark.parametrize("engine", ENGINES)


def bucket_at(options: dict[str, Any], engine: str, url: str = "s3://bucket/p") -> Bucket:
    retry = Retry(2, sleep=lambda seconds: None)
    return open_bucket(parse_bucket_url(url), {**options, "engine": engine}, retry)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("wrong", ["key", "secret"])
def test_wrong_credentials(server: S3Server, engine: str, wrong: str, verb: str) -> None:
    bucket_at(server.options, engine).put("x", b"12345")
    bucket = bucket_at({**server.options, wrong: "wrong"}, engine)
    with pytest.raises(StoreDeniedError, match="credentials"):
        VERBS[verb](bucket)


@pytest.mark.parametrize("verb", ["info", "list", "get", "put"])
def test_no_answer(engine: str, server: S3Server, verb: str) -> None:
    bucket = bucket_at({**server.options, "endpoint_url": "http://127.0.0.1:9"}, engine)
    with pytest.raises(StoreUnreachableError, match="endpoint"):
        VERBS[verb](bucket)


class TestCheck:
    def check(self, engine: str, options: dict[str, Any], url: str = "s3://bucket/p") -> None:
        started = time.monotonic()
        try:
            check_bucket(parse_bucket_url(url), {**options, "engine": engine}, write=True)
        finally:
            assert time.monotonic() - started < 120

    def test_a_good_place_is_good_and_left_as_it_was(self, server: S3Server, engine: str) -> None:
        url = f"s3://bucket/{uuid.uuid4().hex}"
        bucket_at(server.options, engine).put("x", b"")  # so that there is a bucket
        self.check(engine, server.options, url)
        assert bucket_at(server.options, engine, url).list("") == []

    def test_a_missing_bucket(self, server: S3Server, engine: str) -> None:
        with pytest.raises(ConfigError, match="create"):
            self.check(engine, server.options, "s3://never-made/p")
        with pytest.raises(ConfigError, match="create"):  # and the first did not make it
            self.check(engine, server.options, "s3://never-made/p")

    def test_wrong_credentials(self, server: S3Server, engine: str) -> None:
        with pytest.raises(StoreDeniedError, match="credentials"):
            self.check(engine, {**server.options, "secret": "wrong"})

    def test_nobody_there(self, server: S3Server, engine: str) -> None:
        with pytest.raises(StoreUnreachableError, match="endpoint"):
            self.check(engine, {**server.options, "endpoint_url": "http://127.0.0.1:9"})

    def test_no_such_host(self, server: S3Server, engine: str) -> None:
        with pytest.raises(StoreUnreachableError, match="endpoint"):
            self.check(engine, {**server.options, "endpoint_url": "http://nohost.invalid"})
