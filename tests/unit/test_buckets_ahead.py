"""Objects are read ahead in ranges, each once, and never more than was agreed."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tune_sync.buckets import ahead
from tune_sync.buckets.ahead import ReadsAhead
from tune_sync.testing.memory_bucket import MemoryBucket

DATA = random.Random(1).randbytes(10_007)


class CountingBucket(MemoryBucket):
    """Notes which ranges were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.asked_lock = threading.Lock()

    def get(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        with self.asked_lock:
            self.asked.append(offset_bytes)
        return super().get(key, offset_bytes, length_bytes)


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ahead, "RANGE_BYTES", 100)
    monkeypatch.setattr(ahead, "RANGES_COUNT", 5)
    monkeypatch.setattr(ahead, "SMALL_BYTES", 10)
    yield


@pytest.fixture
def bucket() -> CountingBucket:
    bucket = CountingBucket()
    bucket.put("a", DATA)
    bucket.put("b", DATA[::-1])
    return bucket


def read_all(reads: ReadsAhead, key: str, step: int) -> bytes:
    found, at = b"", 0
    while data := reads.read(key, at, min(step, len(DATA) - at)) if at < len(DATA) else b"":
        found += data
        at += len(data)
    return found


@pytest.mark.parametrize("step", [11, 99, 100, 101, 1000, 5003, 20_000])
def test_it_reads_every_byte_once(bucket: CountingBucket, step: int) -> None:
    assert read_all(ReadsAhead(bucket), "a", step) == DATA
    assert sorted(bucket.asked) == list(range(0, len(DATA), 100))


def test_it_is_ahead_of_the_reader_and_not_by_more_than_agreed(bucket: CountingBucket) -> None:
    reads = ReadsAhead(bucket)
    assert reads.read("a", 0, 100) == DATA[:100]
    assert reads.read("a", 100, 100) == DATA[100:200]
    reads._pool.shutdown()  # by then all is asked for that was to be
    assert 300 in bucket.asked
    assert max(bucket.asked) <= 600


def test_two_readers_at_once_and_any_position(bucket: CountingBucket) -> None:
    reads = ReadsAhead(bucket)
    for start in (0, 500, 250, 0, 9_000, 9_950):
        assert reads.read("a", start, 500) == DATA[start : start + 500]
        assert reads.read("b", start, 500) == DATA[::-1][start : start + 500]


def test_an_object_that_is_not_there_is_told(bucket: CountingBucket) -> None:
    with pytest.raises(FileNotFoundError):
        ReadsAhead(bucket).read("absent", 0, 500)


def test_small_reads_are_one_request(bucket: CountingBucket) -> None:
    assert ReadsAhead(bucket).read("a", 0, 10) == DATA[:10]
    assert bucket.asked == [0]


@pytest.mark.parametrize("step", [11, 100, 1000, 20_000])
def test_an_object_that_was_listed_is_not_looked_at(
    bucket: CountingBucket, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    reads = ReadsAhead(bucket)
    reads.sizes = {"a": len(DATA)}
    monkeypatch.setattr(bucket, "info", lambda key: pytest.fail(f"a look at {key}"))
    assert read_all(reads, "a", step) == DATA
    assert sorted(bucket.asked) == list(range(0, len(DATA), 100))


def test_after_an_error_nothing_more_is_asked_for(bucket: CountingBucket) -> None:
    get, is_there = bucket.get, threading.Event()

    def fail(key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        if not offset_bytes:
            raise OSError("no answer")
        is_there.wait(60)
        return get(key, offset_bytes, length_bytes)

    bucket.get = fail  # type: ignore[method-assign]
    reads = ReadsAhead(bucket)
    reads._pool = ThreadPoolExecutor(1)
    with pytest.raises(OSError, match="no answer"):
        reads.read("a", 0, 1000)
    is_there.set()
    reads._pool.shutdown()
    assert len(bucket.asked) <= 1
