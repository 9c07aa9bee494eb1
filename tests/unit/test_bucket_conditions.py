"""Before training it is seen whether a store does what leases rest on: puts on condition."""

from __future__ import annotations

from functools import partial

import pytest

from tune_sync.buckets import opening
from tune_sync.buckets.opening import check_bucket
from tune_sync.buckets.retry import Retry
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import ConfigError, StoreUnreachableError
from tune_sync.testing.memory_bucket import MemoryBucket

URL = parse_bucket_url("s3://bucket/exp")
BUSY = OSError("503 SlowDown: reduce your request rate")


class Store(MemoryBucket):
    """Does with puts on condition what it is told.

    Args:
        failures: Raised by these puts on condition, one each; None for one that is done.
        overlooks: It overlooks the condition.
        is_late: What fails is done all the same.
        conditional_put: What is said of its library.
    """

    def __init__(
        self, *failures: Exception | None, overlooks: bool = False, is_late: bool = False,
        conditional_put: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(conditional_put=conditional_put)
        self._failures, self._overlooks, self._is_late = list(failures), overlooks, is_late
        self.puts: list[bool] = []

    def put(
        self, key: str, data: bytes | memoryview, *, create_only: bool = False, if_match: str = ""
    ) -> str:
        self.puts.append(create_only)
        failure = self._failures.pop(0) if create_only and self._failures else None
        if failure is not None and not self._is_late:
            raise failure
        etag = super().put(key, data, create_only=create_only and not self._overlooks)
        if failure is not None:
            raise failure
        return etag


def check(store: Store, monkeypatch: pytest.MonkeyPatch, *, by_node: bool = False) -> None:
    monkeypatch.setattr(opening, "make_client", lambda url, options: store)
    monkeypatch.setattr(opening, "Retry", partial(Retry, sleep=lambda pause_s: None))
    check_bucket(URL, {}, write=True, by_node=by_node)


def test_a_store_that_overlooks_conditions_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(overlooks=True)
    with pytest.raises(ConfigError, match=r"s3://bucket/exp.*If-None-Match.*pyarrow"):
        check(store, monkeypatch)
    assert not store.objects


def test_a_store_that_does_not_know_them_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(OSError("<Code>NotImplemented</Code><Message>A header</Message>"))
    with pytest.raises(ConfigError, match=r"refuses a put on condition.*NotImplemented.*pyarrow"):
        check(store, monkeypatch)
    assert not store.objects


def test_one_that_knows_them_costs_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    check(store, monkeypatch)
    assert store.puts == [False, True] and not store.objects


def test_from_nodes_it_is_put_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores refuse a second put of an object within a second."""
    store = Store()
    check(store, monkeypatch, by_node=True)
    assert store.puts == [False] and not store.objects


def test_one_whose_library_does_not_say_so_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(overlooks=True, conditional_put=False)
    check(store, monkeypatch)
    assert store.puts == [False] and not store.objects


@pytest.mark.parametrize("is_late", [False, True])
def test_what_is_tried_again_tells_the_same(
    monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    with pytest.raises(ConfigError, match="If-None-Match"):
        check(Store(BUSY, overlooks=True, is_late=is_late), monkeypatch)
    check(Store(BUSY, BUSY, BUSY), monkeypatch)


def test_no_answer_to_it_is_no_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "CHECK_PATIENCE_S", 0.0)
    with pytest.raises(StoreUnreachableError):
        check(Store(*[BUSY] * 9), monkeypatch)
