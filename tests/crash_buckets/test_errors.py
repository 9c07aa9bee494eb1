"""Requests that fail once, or whose answer is lost, without a crash."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from tests.crash.ledger import Ledger
from tests.crash.steps import Action
from tests.crash_buckets.invariants import check_at_once, check_recovered, check_stable
from tests.crash_buckets.run import Run
from tests.crash_buckets.scenarios import SCENARIOS
from tests.manifests import manifests_of
from tune_sync.errors import StoreUnreachableError
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.testing.memory_bucket import MemoryBucket


class FailsOnce(MemoryBucket):
    """Change number `at_count` raises, before or after it was made."""

    def __init__(self, at_count: int, *, after: bool) -> None:
        super().__init__()
        self._at_count = at_count
        self._after = after
        self.changes_count = 0

    def put(self, key: str, data: bytes, *, create_only: bool = False, if_match: str = "") -> str:
        failing = self._fails()
        etag = super().put(key, data, create_only=create_only, if_match=if_match)
        if failing:
            raise StoreUnreachableError("the answer is lost")
        return etag

    def delete(self, keys: Sequence[str]) -> None:
        failing = self._fails()
        super().delete(keys)
        if failing:
            raise StoreUnreachableError("the answer is lost")

    def heal(self) -> None:
        self._at_count = 0

    def _fails(self) -> bool:
        self.changes_count += 1
        failing = self.changes_count == self._at_count
        if failing and not self._after:
            raise StoreUnreachableError("it does not answer")
        return failing


class TryingAgain(Run):
    """A driver that does a failed step once more."""

    def do(self, action: Action) -> None:
        try:
            action()
        except StoreUnreachableError:
            action()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_step_that_failed_may_be_done_again(name: str, after: bool) -> None:
    for at_count in itertools.count(1):
        bucket, ledger = FailsOnce(at_count, after=after), Ledger()
        SCENARIOS[name](TryingAgain(bucket, ledger))
        ended = bucket.changes_count < at_count
        bucket.heal()
        check_at_once(bucket, ledger)
        published = {manifest.checkpoint for manifest in manifests_of(BucketCommitter(bucket))}
        assert set(ledger.recorded) - ledger.retired <= published
        BucketCommitter(bucket).recover()
        check_recovered(bucket, ledger, ())
        check_stable(bucket)
        if ended:
            return
