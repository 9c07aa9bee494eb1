"""Stores that are slow, throttle and drop answers; what is given up leaves nothing."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.stores.proxy import Faults, Handler, proxy
from tests.stores.seaweed import S3Server, s3
from tune_sync.buckets.bucket import Bucket
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.retry import Retry
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import ConfigError, StoreUnreachableError

ENGINES = ("obstore", "pyarrow")
MIB = 1 << 20


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex


def opened(options: dict[str, Any], prefix: str, engine: str, **more: Any) -> Bucket:
    url = parse_bucket_url(f"s3://bucket/{prefix}")
    return open_bucket(url, {**options, "engine": engine, **more})


@pytest.mark.parametrize("engine", ENGINES)
def test_throttling_and_lost_answers_are_seen_through(
    server: S3Server, prefix: str, engine: str
) -> None:
    faults = Faults(share=0.1)
    with proxy(server.endpoint_url, faults) as url:
        retry = Retry(8, sleep=lambda seconds: time.sleep(seconds / 20))
        options = {**server.options, "endpoint_url": url, "engine": engine}
        bucket = open_bucket(parse_bucket_url(f"s3://bucket/{prefix}"), options, retry)
        for number in range(100):
            bucket.put(f"d/{number:03}", str(number).encode(), create_only=True)
        bucket.put_stream("large", [bytes([n]) * MIB for n in range(40)])
        assert len(bucket.list("d")) == 100
        assert bucket.get("d/042") == b"42"
        faults.share = 0.0
        digest = hashlib.md5(bucket.get("large")).hexdigest()
        assert digest == hashlib.md5(b"".join(bytes([n]) * MIB for n in range(40))).hexdigest()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_store_that_takes_five_seconds_for_each_request_works_by_default(
    server: S3Server, prefix: str, engine: str
) -> None:
    with proxy(server.endpoint_url, Faults(delay_s=5.0)) as url:
        bucket = opened({**server.options, "endpoint_url": url}, prefix, engine)
        bucket.put("x", b"1")
    assert opened(server.options, prefix, engine).get("x") == b"1"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_time_limit_that_is_too_short_is_named(
    server: S3Server, prefix: str, engine: str
) -> None:
    with proxy(server.endpoint_url, Faults(delay_s=3.0)) as url:
        options = {
            **server.options, "endpoint_url": url, "engine": engine, "request_timeout_s": 1
        }  # fmt: skip
        once = Retry(1)
        bucket = open_bucket(parse_bucket_url(f"s3://bucket/{prefix}"), options, once)
        with pytest.raises(StoreUnreachableError, match="request_timeout_s"):
            bucket.info("x")


@pytest.mark.parametrize("engine", ENGINES)
def test_one_request_is_tried_as_often_as_is_said_and_not_more(
    server: S3Server, prefix: str, engine: str
) -> None:
    # Answers alone: HTTP libraries repeat by themselves what a reset connection has lost.
    faults = Faults(share=1.0, kinds=("503", "500", "429"))
    with proxy(server.endpoint_url, faults) as url:
        options = {**server.options, "endpoint_url": url, "engine": engine}
        retry = Retry(3, sleep=lambda seconds: None)
        bucket = open_bucket(parse_bucket_url(f"s3://bucket/{prefix}"), options, retry)
        with pytest.raises(StoreUnreachableError):
            bucket.info("x")
    assert len(faults.requests) == 3


@pytest.mark.parametrize("tries_count", [4, 5])
def test_an_option_says_how_often(server: S3Server, prefix: str, tries_count: int) -> None:
    faults = Faults(planned=["503"] * 4)
    with proxy(server.endpoint_url, faults) as url:
        options = {**server.options, "endpoint_url": url, "tries_count": tries_count}
        bucket = open_bucket(parse_bucket_url(f"s3://bucket/{prefix}"), options)
        if tries_count == 5:
            bucket.put("x", b"1")
            assert bucket.get("x") == b"1"
        else:
            with pytest.raises(StoreUnreachableError):
                bucket.put("x", b"1")
    assert len(faults.failed) == 4


@pytest.mark.parametrize("tries_count", [0, -1, 2.5, "5", True])
def test_what_is_no_number_of_tries_is_named(tries_count: Any) -> None:
    with pytest.raises(ConfigError, match="tries_count"):
        open_bucket(parse_bucket_url("s3://bucket/x"), {"tries_count": tries_count})


@pytest.mark.parametrize("engine", [*ENGINES, "fsspec"])
def test_a_stream_that_is_given_up_leaves_no_parts(
    server: S3Server, prefix: str, engine: str
) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(10):
            yield b"x" * (8 * MIB)
        raise RuntimeError("the trial is gone")

    bucket = opened(server.options, prefix, engine)
    with pytest.raises(RuntimeError, match="the trial is gone"):
        bucket.put_stream("s", chunks())
    found = s3(server).list_multipart_uploads(Bucket="bucket", Prefix=prefix)
    assert found.get("Uploads", []) == []
    assert bucket.info("s") is None


@pytest.mark.parametrize("engine", [*ENGINES, "fsspec"])
def test_empty_objects_in_place_of_directories_are_no_files(
    server: S3Server, prefix: str, engine: str
) -> None:
    bucket = opened(server.options, prefix, engine)
    bucket.put("d/e/x", b"1")
    bucket.put("d/zero", b"")
    for marker in ("d/", "d/e/", "d/empty/"):
        s3(server).put_object(Bucket="bucket", Key=f"{prefix}/{marker}", Body=b"")
    assert [o.key for o in bucket.list("d")] == ["d/e/x", "d/zero"]
    assert [o.key for o in bucket.list_dir("d")[0]] == ["d/zero"]
    assert "d/e" in bucket.list_dir("d")[1]


@pytest.mark.parametrize("engine", [*ENGINES, "fsspec"])
def test_many_threads_share_a_bucket(server: S3Server, prefix: str, engine: str) -> None:
    bucket = opened(server.options, prefix, engine)

    def work(thread: int) -> int:
        for number in range(10):
            bucket.put(f"{thread}/{number}", b"1")
        return len(bucket.list(str(thread)))

    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(work, range(32))) == [10] * 32


class Damages(Handler):
    """Flips a bit in the middle of the next body that is put."""

    damages: list[str]

    def ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        if self.command == "PUT" and len(body) > MIB // 2 and self.damages:
            self.damages.pop()
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
        return super().ask(body)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_object_that_is_damaged_on_its_way_is_refused_and_sent_again(
    server: S3Server, prefix: str, engine: str
) -> None:
    damages = ["once"]
    with proxy(server.endpoint_url, Faults(), Damages, damages=damages) as url:
        bucket = opened({**server.options, "endpoint_url": url}, prefix, engine)
        bucket.put("small", bytes(MIB))
        assert not damages
    assert opened(server.options, prefix, engine).get("small") == bytes(MIB)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_part_that_is_damaged_on_its_way_is_an_error_that_says_so(
    server: S3Server, prefix: str, engine: str
) -> None:
    damages = ["once"]
    with proxy(server.endpoint_url, Faults(), Damages, damages=damages) as url:
        bucket = opened({**server.options, "endpoint_url": url}, prefix, engine)
        with pytest.raises(StoreUnreachableError, match="damaged on their way"):
            bucket.put_stream("large", [bytes(MIB)] * 40, 40 * MIB)
        assert not damages
    assert opened(server.options, prefix, engine).info("large") is None
