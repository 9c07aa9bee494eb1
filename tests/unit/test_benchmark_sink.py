"""The sink that buckets are measured against answers as a store does, to each of the libraries."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.s3_sink import READY
from tests.meta.repo import ROOT
from tune_sync.buckets.bucket import Bucket
from tune_sync.buckets.files import get_files, put_files
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import PutConflictError

KNOWN = bytes(range(256)) * 256


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    directory = tmp_path / "sources"
    directory.mkdir()
    (directory / "known.bin").write_bytes(KNOWN)
    return directory


def serve(sources: Path, *options: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "benchmarks.s3_sink", str(sources), *options]
    sink = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert sink.stdout is not None
    return sink, f"http://127.0.0.1:{sink.stdout.readline().removeprefix(READY).strip()}"


@pytest.fixture
def endpoint(sources: Path) -> Iterator[str]:
    sink, url = serve(sources)
    yield url
    sink.communicate("")


def opened(endpoint: str, engine: str = "obstore") -> Bucket:
    options = {"endpoint_url": endpoint, "key": "k", "secret": "s", "engine": engine}
    return open_bucket(parse_bucket_url("s3://bench/root"), {**options, "region": "us-east-1"})


@pytest.mark.parametrize("engine", ["obstore", "pyarrow", "fsspec"])
def test_what_was_put_is_there(endpoint: str, engine: str) -> None:
    bucket = opened(endpoint, engine)
    bucket.put("a/one", b"1")
    bucket.put("a/b c%+/two", b"22")
    bucket.put_stream("a/three", iter([b"3" * 100, b"3" * 100]))
    assert [(o.key, o.size_bytes) for o in bucket.list("a")] == [
        ("a/b c%+/two", 2),
        ("a/one", 1),
        ("a/three", 200),
    ]
    objects, directories = bucket.list_dir("a")
    assert ([o.key for o in objects], directories) == (["a/one", "a/three"], ["a/b c%+"])
    assert bucket.get("a/three", 150) == b"3" * 50
    bucket.delete(["a/one", "a/three"])
    assert bucket.info("a/one") is None
    assert bucket.get("a/b c%+/two") == b"22"


def test_conditions_hold(endpoint: str) -> None:
    bucket = opened(endpoint)
    etag = bucket.put("a", b"1", create_only=True)
    with pytest.raises(PutConflictError):
        bucket.put("a", b"2", create_only=True)
    bucket.put("a", b"3", if_match=etag)
    with pytest.raises(PutConflictError):
        bucket.put("a", b"4", if_match=etag)


def test_a_known_file_is_not_kept_and_comes_from_the_source(endpoint: str, tmp_path: Path) -> None:
    bucket = opened(endpoint)
    put_files(bucket, {"x/known.bin": tmp_path / "sources/known.bin"})
    get_files(bucket, bucket.list("x"), tmp_path / "target")
    assert (tmp_path / "target/x/known.bin").read_bytes() == KNOWN


def test_more_than_a_page_is_listed(endpoint: str) -> None:
    bucket = opened(endpoint)
    for number in range(1100):
        bucket.put(f"a/{number:04}", b"")
    assert len(bucket.list("a")) == 1100


def test_latency_and_speed_are_kept(sources: Path) -> None:
    sink, url = serve(sources, "--latency-ms", "50", "--mb-per-s", "1")
    try:
        bucket = opened(url)
        bucket.put("first", b"")
        start_s = time.monotonic()
        bucket.put("a", bytes(200_000))
        assert time.monotonic() - start_s >= 0.25
        start_s = time.monotonic()
        assert len(bucket.get("a")) == 200_000
    finally:
        sink.communicate("")
