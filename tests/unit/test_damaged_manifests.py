"""A manifest that cannot be read costs its own checkpoint, and no other one."""

from __future__ import annotations

import re

import pytest

from tests.unit.test_bucket_commit import C0, staged
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.homes.bucket.staging import OVER, mark_key
from tune_sync.layout import manifest_key
from tune_sync.testing.memory_bucket import MemoryBucket

C1 = "trial/checkpoint_000001"
SAYS = rf"{manifest_key(C0)} is not JSON.*{C0} does not count until a whole copy of that file is"


@pytest.fixture
def bucket() -> MemoryBucket:
    """One that holds a checkpoint whose manifest is damaged."""
    made = MemoryBucket()
    committer = BucketCommitter(made, "me")
    attempt = staged(committer, {"a": b"1"})
    committer.record(committer.place(C0, attempts=[attempt]).manifest)
    made.put(manifest_key(C0), b'{"torn')
    return made


@pytest.mark.parametrize("found", ["staging", "no objects", "both"])
def test_recovery_leaves_a_checkpoint_whose_manifest_is_damaged(
    bucket: MemoryBucket, caplog: pytest.LogCaptureFixture, found: str
) -> None:
    if found != "no objects":
        bucket.put(mark_key(C0, "late", OVER), b"{}")
    if found != "staging":
        bucket.delete([f"{C0}/a"])
    before = dict(bucket.objects)
    for _ in range(2):
        recovery = BucketCommitter(bucket).recover()
        assert (recovery.completed, recovery.dropped, recovery.forgotten) == ((), (), ())
        assert bucket.objects == before
    assert re.search(SAYS, caplog.text)


def test_recovery_goes_on_with_what_comes_after_it(bucket: MemoryBucket) -> None:
    bucket.put(mark_key(C0, "late", OVER), b"{}")
    bucket.put(f"{C1}/half", b"of one that was never sealed")
    bucket.put(mark_key(C1, "late", OVER), b"{}")
    assert BucketCommitter(bucket).recover().dropped == (C1,)
    assert BucketCommitter(bucket).sweep().dropped == ()


def test_what_late_writers_left_goes_once_the_manifest_is_put_back(bucket: MemoryBucket) -> None:
    whole = MemoryBucket()
    committer = BucketCommitter(whole, "me")
    committer.record(committer.place(C0, attempts=[staged(committer, {"a": b"1"})]).manifest)
    bucket.put(f"{C0}/late", b"x")
    bucket.put(mark_key(C0, "late", OVER), b"{}")
    BucketCommitter(bucket).recover()
    bucket.put(manifest_key(C0), whole.objects[manifest_key(C0)])
    BucketCommitter(bucket).recover()
    assert sorted(bucket.objects) == sorted([manifest_key(C0), f"{C0}/a"])
