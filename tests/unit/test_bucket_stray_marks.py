"""What is published stays, whatever lies in its staging, where one answer says that it is not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.unit.test_bucket_listings import Listing, published, sealed
from tests.unit.test_bucket_pages import C, Paged, each, stored
from tune_sync import layout
from tune_sync.errors import TuneSyncError
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.homes.bucket.staging import BEGUN, OVER, RETIRED, SEAL, intent_key, mark_key
from tune_sync.testing.memory_bucket import MemoryBucket

MARKS = {"late": (BEGUN,), "late and sealed": (BEGUN, SEAL), "over": (OVER,)}
NUMBERS = (0, 2)
THERE = [C[number] for number in NUMBERS]


def stray(*marks: str) -> Callable[[MemoryBucket], None]:
    """Marks of a late writer came when all was removed from staging."""

    def make(bucket: MemoryBucket) -> None:
        bucket.put(layout.FORMAT_KEY, b"{}")
        for checkpoint in THERE:
            published(BucketCommitter(bucket, "dead"), checkpoint)
            for mark in marks:
                bucket.put(mark_key(checkpoint, "late", mark), b"{}")

    return make


def untidied(bucket: MemoryBucket) -> None:
    """Its run was killed before it removed anything from staging."""
    bucket.put(layout.FORMAT_KEY, b"{}")
    for checkpoint in THERE:
        committer = BucketCommitter(bucket, "dead")
        placed = committer.place(checkpoint, attempts=[sealed(committer, checkpoint)])
        committer._tidied = lambda *what: False  # type: ignore[assignment, method-assign]
        committer.record(placed.manifest)


def half_tidied(bucket: MemoryBucket) -> None:
    untidied(bucket)
    bucket.delete([intent_key(checkpoint) for checkpoint in THERE])


STATES: dict[str, Callable[[MemoryBucket], None]] = {
    **{name: stray(*marks) for name, marks in MARKS.items()},
    "untidied": untidied,
    "half tidied": half_tidied,
}


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("how", [BucketCommitter.recover, BucketCommitter.sweep])
@pytest.mark.parametrize("kind", ["none", "page", "half"])
@pytest.mark.parametrize("state", STATES)
def test_no_answers_in_a_row_have_it_deleted(
    state: str, kind: str, how: Callable[[BucketCommitter], object], count: int
) -> None:
    for bucket, _ in each(kind, count, STATES[state]):
        with suppress(OSError, TuneSyncError):  # whoever asks for it tries again
            how(BucketCommitter(bucket, "next"))
        wrong, bucket.count = bucket.wrong, 0
        assert stored(bucket) == THERE, wrong
        BucketCommitter(bucket, "next but one").recover()
        assert stored(bucket) == THERE and not bucket.list(layout.STAGING_DIR), wrong


@pytest.mark.parametrize("mark", [BEGUN, RETIRED])
def test_another_listing_counts_before_it_is_dropped(mark: str) -> None:
    """The first one, and the read of its manifest, do not show that it is published."""

    class Away(Listing):
        def get(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
            if key == layout.manifest_key(THERE[1]) and self.hidden:
                raise FileNotFoundError(key)
            return super().get(key, offset_bytes, length_bytes)

    bucket = Away()
    stray(mark)(bucket)
    before = dict(bucket.objects)
    bucket.hidden, bucket.count = [layout.manifest_key(THERE[1])], 1
    found = BucketCommitter(bucket, "next").recover()
    assert (found.dropped, found.kept) == ((), (THERE[1],))
    left = {key: data for key, data in before.items() if f"{layout.STAGING_DIR}/{C[0]}" not in key}
    assert bucket.objects == left


def test_it_is_said_that_it_was_listed_and_not_read(caplog: pytest.LogCaptureFixture) -> None:
    bucket = Paged("none")
    stray(BEGUN)(bucket)
    bucket.sees(3, 1)
    BucketCommitter(bucket, "next").recover()
    assert bucket.wrong == [f"get {layout.manifest_key(THERE[0])}"]
    (warning,) = caplog.messages
    assert f"the manifest of {THERE[0]} is listed, and was not there" in warning
