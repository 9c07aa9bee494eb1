"""A check before a run tells what is wrong within seconds, and waits for a store that answers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tune_sync.buckets.opening import check_bucket
from tune_sync.buckets.retry import LONGEST_PAUSE_S, Retry, RetryBucket
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import StoreUnreachableError
from tune_sync.testing.memory_bucket import MemoryBucket

BUSY, LOST = "AWS Error SLOW_DOWN during GetObject", "curlCode: 56, connection reset"
PATIENCE_S = 30.0


class Weather(MemoryBucket):
    """Each answer is lost or a refusal, as it is told; "" is one that comes."""

    def __init__(self, answers: Iterable[str]) -> None:
        super().__init__()
        self.objects["x"] = b"1"
        self._answers = iter(answers)
        self.tries_count = 0

    def get(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        self.tries_count += 1
        if words := next(self._answers, ""):
            raise OSError(words)
        return super().get(key, offset_bytes, length_bytes)


def checked_by(client: MemoryBucket) -> tuple[RetryBucket, list[float]]:
    now_s = [0.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    retry = Retry(2, sleep=sleep, dice=lambda: 1.0, clock=lambda: now_s[0], patience_s=PATIENCE_S)
    return RetryBucket(lambda: client, "s3://b/x", retry), now_s


def test_a_store_that_asks_for_fewer_requests_is_waited_for() -> None:
    bucket, now_s = checked_by(Weather([BUSY] * 6))
    assert bucket.get("x") == b"1" and now_s[0] < PATIENCE_S


def test_one_that_has_answered_is_there() -> None:
    bucket, _ = checked_by(Weather(["", *[LOST] * 5, "", *[LOST] * 5]))
    assert [bucket.get("x") for _ in range(3)] == [b"1"] * 3


@pytest.mark.parametrize("words", [BUSY, LOST])
def test_it_is_told_once_patience_is_over(words: str) -> None:
    bucket, now_s = checked_by(Weather(itertools.chain([""], itertools.repeat(words))))
    bucket.get("x")
    with pytest.raises(StoreUnreachableError):
        bucket.get("x")
    assert PATIENCE_S <= now_s[0] <= PATIENCE_S + LONGEST_PAUSE_S


def test_one_that_never_answers_is_told_at_once() -> None:
    client = Weather([LOST] * 9)
    bucket, _ = checked_by(client)
    with pytest.raises(StoreUnreachableError):
        bucket.get("x")
    assert client.tries_count == 2


class Busy(MemoryFileSystem):  # type: ignore[misc]
    """Its first requests are refused."""

    protocol = "busy"
    store: dict[str, Any] = {"/bucket/exp/there": None}
    refused_count = 0

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        if Busy.refused_count < 3:
            Busy.refused_count += 1
            raise OSError("429 Too Many Requests: SlowDown")
        return []


def test_a_check_waits_for_a_store_that_asks_for_fewer_requests() -> None:
    fsspec.register_implementation("busy", Busy, clobber=True)
    check_bucket(parse_bucket_url("busy://bucket/exp"), {}, write=False)
    assert Busy.refused_count == 3
