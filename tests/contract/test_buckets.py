"""Every engine behaves as a bucket, on real servers and file systems."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stores.seaweed import S3Server, seaweed
from tune_sync.buckets.bucket import Bucket
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.url import BucketUrl, parse_bucket_url
from tune_sync.testing.bucket_contract import BucketContract
from tune_sync.testing.memory_bucket import MemoryBucket


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweed(tmp_path_factory.mktemp("weed")) as running:
        yield running


class TestMemoryBucket(BucketContract):
    made: dict[Path, MemoryBucket] = {}

    def make_bucket(self, tmp_path: Path) -> Bucket:
        return self.made.setdefault(tmp_path, MemoryBucket())


class TestFsspecMemory(BucketContract):
    def make_bucket(self, tmp_path: Path) -> Bucket:
        return open_bucket(parse_bucket_url(f"memory://{tmp_path.as_posix().strip('/')}"))


class TestFsspecDirectory(BucketContract):
    def make_bucket(self, tmp_path: Path) -> Bucket:
        url = BucketUrl("file", f"{tmp_path.as_posix().strip('/')}/root")
        return open_bucket(url)


class OnS3(BucketContract):
    engine = ""

    @pytest.fixture(autouse=True)
    def _at(self, server: S3Server) -> None:
        self.options: dict[str, Any] = {**server.options, "engine": self.engine}
        self.prefix = uuid.uuid4().hex

    def make_bucket(self, tmp_path: Path) -> Bucket:
        return open_bucket(parse_bucket_url(f"s3://bucket/{self.prefix}"), self.options)


class TestObstoreS3(OnS3):
    engine = "obstore"


class TestArrowS3(OnS3):
    engine = "pyarrow"


class TestFsspecS3(OnS3):
    engine = "fsspec"
