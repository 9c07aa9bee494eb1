"""A store that takes ten parts of an object: parts are as large as that needs."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.stores.proxy import Faults, Handler, proxy
from tests.stores.seaweed import S3Server, s3
from tune_sync.buckets import arrow_bucket, engines
from tune_sync.buckets import bucket as limits
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import ConfigError
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.layout import staged_key

PARTS_COUNT = 10
MIB = 1 << 20
SIZE_BYTES = 168 * MIB  # eleven parts of the usual size
NUMBER = re.compile(r"[?&]partNumber=(\d+)")


class FewPartsHandler(Handler):
    def pass_on(self, body: bytes, fault: str) -> None:
        number = NUMBER.search(self.path)
        super().pass_on(body, "too many" if number and int(number[1]) > PARTS_COUNT else fault)


def chunks() -> Iterator[bytes]:
    return (bytes([number]) * MIB for number in range(SIZE_BYTES // MIB))


@pytest.fixture
def options(server: S3Server) -> Iterator[dict[str, Any]]:
    with proxy(server.endpoint_url, Faults(), FewPartsHandler) as url:
        yield {**server.options, "endpoint_url": url, "engine": "obstore"}


def test_parts_are_as_large_as_the_limit_needs(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PARTS_COUNT", PARTS_COUNT)
    bucket = open_bucket(parse_bucket_url(f"s3://bucket/{uuid.uuid4().hex}"), options)
    bucket.put_stream("large", chunks(), SIZE_BYTES)
    wanted = hashlib.md5(b"".join(chunks())).hexdigest()
    assert hashlib.md5(bucket.get("large")).hexdigest() == wanted


def test_what_the_store_refuses_leaves_no_parts(server: S3Server, options: dict[str, Any]) -> None:
    prefix = uuid.uuid4().hex
    bucket = open_bucket(parse_bucket_url(f"s3://bucket/{prefix}"), options)
    with pytest.raises(OSError, match="size of a part"):
        bucket.put_stream("large", chunks(), SIZE_BYTES)
    assert bucket.info("large") is None
    found = s3(server).list_multipart_uploads(Bucket="bucket", Prefix=prefix)
    assert found.get("Uploads", []) == []


@pytest.mark.parametrize("other", ["obstore", "s3fs"])
def test_what_pyarrow_has_too_few_parts_for_goes_through_another_library(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    monkeypatch.setattr(limits, "MAX_PARTS_COUNT", PARTS_COUNT)
    monkeypatch.setattr(arrow_bucket, "MAX_STREAM_BYTES", PARTS_COUNT * 10 * MIB)
    monkeypatch.setattr(engines, "_is_installed", lambda library: library in (other, "boto3"))
    bucket = open_bucket(
        parse_bucket_url(f"s3://bucket/{uuid.uuid4().hex}"), {**options, "engine": "pyarrow"}
    )
    bucket.put_stream("large", chunks(), SIZE_BYTES)
    wanted = hashlib.md5(b"".join(chunks())).hexdigest()
    assert hashlib.md5(bucket.get("large")).hexdigest() == wanted


def test_without_another_library_it_is_refused_before_it_is_sent(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_is_installed", lambda library: False)
    url = parse_bucket_url(f"s3://bucket/{uuid.uuid4().hex}")
    home = BucketHome(open_bucket(url, {**options, "engine": "pyarrow"}))
    with pytest.raises(ConfigError, match="pip install obstore"):
        home.expect(staged_key("trial/checkpoint_000000", "a") + "/x", 100 << 30)
