"""Commits in a bucket, where a scenario of the crash loop would say less."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import xxhash

from tests.manifests import manifests_of
from tune_sync.buckets.bucket import ObjectInfo
from tune_sync.errors import (
    ConfigError,
    DamagedError,
    ImmutableError,
    LeaseLostError,
    NotWholeError,
)
from tune_sync.homes.bucket import records
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.layout import manifest_key, seal_key
from tune_sync.manifest import FileEntry, Manifest, Seal
from tune_sync.publisher import Publisher
from tune_sync.testing.memory_bucket import MemoryBucket

C0 = "trial/checkpoint_000000"
TIMEOUT_S = 60.0


class CountingBucket(MemoryBucket):
    """Counts what is asked of it."""

    requests_count = 0

    def info(self, key: str) -> ObjectInfo | None:
        self.requests_count += 1
        return super().info(key)

    def list(self, prefix: str) -> list[ObjectInfo]:
        self.requests_count += 1
        return super().list(prefix)

    def get(self, key: str, *args: Any) -> bytes:
        self.requests_count += 1
        return super().get(key, *args)

    def put(self, key: str, data: bytes, **options: Any) -> str:
        self.requests_count += 1
        return super().put(key, data, **options)

    def delete(self, keys: Sequence[str]) -> None:
        self.requests_count += bool(keys)
        super().delete(keys)


@pytest.fixture
def bucket() -> CountingBucket:
    return CountingBucket()


@pytest.fixture
def committer(bucket: CountingBucket) -> BucketCommitter:
    return BucketCommitter(bucket, "me")


def staged(
    committer: BucketCommitter, contents: Mapping[str, bytes], rank: int = 0, *, etags: bool = True
) -> str:
    attempt = committer.begin(C0)
    told = {path: committer.put_file(C0, attempt, path, data) for path, data in contents.items()}
    files = tuple(
        FileEntry(path, len(data), xxhash.xxh3_128_hexdigest(data))
        for path, data in contents.items()
    )
    committer.seal(C0, Seal(attempt, rank, float(rank), files), told if etags else None)
    return attempt


def publish(committer: BucketCommitter, *attempts: str, strict: bool = False) -> Manifest:
    placed = committer.place(C0, attempts=attempts, strict=strict)
    committer.record(placed.manifest)
    found = committer.manifest(C0)
    assert found is not None
    return found


def test_place_asks_nothing_of_the_bucket(
    bucket: CountingBucket, committer: BucketCommitter
) -> None:
    attempt = staged(committer, {"x": b"1"})
    before_count = bucket.requests_count
    placed = committer.place(C0, attempts=[attempt], metrics={"loss": 1})
    assert bucket.requests_count == before_count
    committer.record(placed.manifest)
    found = committer.manifest(C0)
    assert found is not None and found.metrics == {"loss": 1}
    assert [file.path for file in found.files] == ["x"]


def test_the_number_of_requests_does_not_grow_with_files(
    bucket: CountingBucket, committer: BucketCommitter
) -> None:
    attempt = staged(committer, {f"file {n}": b"x" for n in range(200)})
    before_count = bucket.requests_count
    publish(committer, attempt)
    assert bucket.requests_count - before_count <= 10


def test_what_is_placed_is_no_open_attempt(committer: BucketCommitter) -> None:
    attempt = staged(committer, {"x": b"1"})
    assert committer.attempts("trial") == [(C0, attempt)]
    committer.place(C0, attempts=[attempt])
    assert committer.attempts("trial") == []


def test_only_reported_attempts_are_taken(committer: BucketCommitter) -> None:
    reported = staged(committer, {"x": b"1"})
    staged(committer, {"y": b"2"}, rank=1)
    assert [file.path for file in publish(committer, reported).files] == ["x"]
    assert committer.bucket.info(f"{C0}/y") is None


def test_half_of_what_was_reported_is_not_published_and_stays(
    bucket: CountingBucket, committer: BucketCommitter
) -> None:
    attempts = [staged(committer, {"x": b"1"}), staged(committer, {"y": b"2"}, rank=1)]
    key = seal_key(C0, attempts[1])
    seal = bucket.get(key)
    bucket.delete([key])  # a listing does not show it yet
    placed = committer.place(C0, attempts=attempts)
    with pytest.raises(NotWholeError, match=f"1 of the 2 parts .*{key}"):
        committer.record(placed.manifest)
    assert committer.manifest(C0) is None
    restored = BucketCommitter(bucket, "next")
    recovery = restored.recover(waits=True)
    assert (recovery.completed, recovery.dropped, recovery.kept) == ((), (), (C0,))
    assert bucket.get(f"{C0}/x") == b"1"
    bucket.put(key, seal)
    assert restored.recover(waits=True).completed == (C0,)
    found = restored.manifest(C0)
    assert found is not None and [file.path for file in found.files] == ["x", "y"]


def test_it_is_published_once_the_rest_is_seen(
    bucket: CountingBucket, committer: BucketCommitter
) -> None:
    attempts = [staged(committer, {"x": b"1"}), staged(committer, {"y": b"2"}, rank=1)]
    key = seal_key(C0, attempts[0])
    seal = bucket.get(key)
    bucket.delete([key])
    placed = committer.place(C0, attempts=attempts)
    with pytest.raises(NotWholeError):
        committer.record(placed.manifest)
    bucket.put(key, seal)
    committer.record(placed.manifest)
    found = committer.manifest(C0)
    assert found is not None and [file.path for file in found.files] == ["x", "y"]


def test_nothing_reported_is_told_at_once(committer: BucketCommitter) -> None:
    with pytest.raises(NotWholeError):
        committer.place(C0, attempts=[])


def test_a_published_checkpoint_is_not_begun_again(committer: BucketCommitter) -> None:
    publish(committer, staged(committer, {"x": b"1"}))
    with pytest.raises(ImmutableError):
        committer.begin(C0)


def test_a_published_checkpoint_is_not_replaced(committer: BucketCommitter) -> None:
    first, second = staged(committer, {"x": b"1"}), staged(committer, {"x": b"1"}, rank=1)
    before = publish(committer, first)
    with pytest.raises(ImmutableError):
        committer.record(committer.place(C0, attempts=[second]).manifest)
    assert committer.manifest(C0) == before


def test_another_run_that_publishes_just_now_is_not_overwritten(bucket: CountingBucket) -> None:
    other = BucketCommitter(bucket, "other")
    seen: list[Manifest] = []

    def fence() -> None:
        if bucket.info(f"{C0}/x") and len(seen) == 1:
            seen.append(publish(other, attempt))
        seen.append(Manifest("", "", 0.0, ()))

    committer = BucketCommitter(bucket, "me", fence)
    attempt = staged(committer, {"x": b"1"})
    with pytest.raises(ImmutableError):
        committer.record(committer.place(C0, attempts=[attempt]).manifest)
    found = committer.manifest(C0)
    assert found is not None and found.owner == "other"


def test_who_lost_the_lease_while_it_looked_publishes_nothing(bucket: CountingBucket) -> None:
    asked = 0

    def fence() -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise LeaseLostError("someone took over")

    committer = BucketCommitter(bucket, "me", fence)
    attempt = staged(committer, {"x": b"1"})
    with pytest.raises(LeaseLostError):
        committer.record(committer.place(C0, attempts=[attempt]).manifest)
    assert bucket.info(manifest_key(C0)) is None


@pytest.mark.parametrize("lost_at", [1, 2])
def test_who_lost_the_lease_deletes_no_checkpoint(bucket: CountingBucket, lost_at: int) -> None:
    asked = 0

    def fence() -> None:
        nonlocal asked
        asked += 1
        if asked == lost_at:
            raise LeaseLostError("someone took over")

    mine = BucketCommitter(bucket, "me")
    manifest = publish(mine, staged(mine, {"x": b"1"}))
    before = dict(bucket.objects)
    with pytest.raises(LeaseLostError):  # the second: its mark was tried for long
        BucketCommitter(bucket, "me", fence).retire(C0)
    assert mine.manifest(C0) == manifest and bucket.get(f"{C0}/x") == b"1"
    assert lost_at > 1 or bucket.objects == before


def test_who_lost_the_lease_gives_up_no_attempt(bucket: CountingBucket) -> None:
    def fence() -> None:
        raise LeaseLostError("someone took over")

    attempt = staged(BucketCommitter(bucket, "other"), {"x": b"1"})
    before = dict(bucket.objects)
    with pytest.raises(LeaseLostError):
        BucketCommitter(bucket, "me", fence).discard_attempt(C0, attempt)
    assert bucket.objects == before


@pytest.mark.parametrize("found", [None, b"1", b"longer"])
def test_a_missing_or_other_object_keeps_it_from_being_published(
    bucket: CountingBucket, committer: BucketCommitter, found: bytes | None
) -> None:
    attempt = staged(committer, {"x": b"0"})
    bucket.delete([f"{C0}/x"])
    if found is not None:
        bucket.put(f"{C0}/x", found)
    with pytest.raises(NotWholeError):
        publish(committer, attempt)
    assert bucket.info(manifest_key(C0)) is None


def test_the_same_bytes_with_another_etag_are_the_same(bucket: CountingBucket) -> None:
    committer = BucketCommitter(bucket, "me")
    attempt = committer.begin(C0)
    bucket.put(f"{C0}/x", b"0")
    files = (FileEntry("x", 1, xxhash.xxh3_128_hexdigest(b"0")),)
    committer.seal(C0, Seal(attempt, 0, 0.0, files), {"x": "of an earlier put"})
    assert publish(committer, attempt).files == files


def test_strict_refuses_ranks_that_disagree(committer: BucketCommitter) -> None:
    parts = [staged(committer, {"x": b"zero"}, 0), staged(committer, {"x": b"ones"}, 1)]
    with pytest.raises(ConfigError, match="different bytes"):
        publish(committer, *parts, strict=True)


def test_what_strict_refuses_is_refused_before_it_is_placed(
    bucket: CountingBucket, committer: BucketCommitter
) -> None:
    parts = [staged(committer, {"x": b"zero"}, 0), staged(committer, {"x": b"ones"}, 1)]
    with pytest.raises(ConfigError, match="ranks 0 and 1 report different bytes for 'x'"):
        committer.place(C0, attempts=parts, strict=True)
    committer.sweep()
    assert bucket.objects == {}


def test_strict_ranks_that_agree_cost_one_look_at_each(
    bucket: CountingBucket, committer: BucketCommitter
) -> None:
    parts = [staged(committer, {"x": b"same", str(rank): b""}, rank) for rank in range(3)]
    before_count = bucket.requests_count
    placed = committer.place(C0, attempts=parts, strict=True)
    assert bucket.requests_count == before_count + 3
    committer.record(placed.manifest)
    one = committer.place("trial/checkpoint_000001", attempts=["a"], strict=True)
    assert one.conflicts == ()


def test_a_bucket_that_does_not_answer_holds_up_strict_for_a_moment_and_is_asked_again(
    bucket: CountingBucket, committer: BucketCommitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [staged(committer, {"x": b"zero"}, 0), staged(committer, {"x": b"ones"}, 1)]
    answers = threading.Event()
    get = bucket.get

    def get_late(key: str, *args: Any) -> bytes:
        assert answers.wait(TIMEOUT_S)
        return get(key, *args)

    monkeypatch.setattr(bucket, "get", get_late)
    monkeypatch.setattr(records, "STRICT_S", 0.1)
    publisher = Publisher(committer)
    manifest = committer.place(C0, attempts=parts, strict=True).manifest
    answers.set()
    publisher.record_later(manifest)
    publisher.wait_for(C0, TIMEOUT_S)
    assert [*publisher.refused()] == [C0]
    assert publisher.close(TIMEOUT_S)


def test_a_file_of_one_rank_that_is_a_directory_of_another_is_refused(
    committer: BucketCommitter,
) -> None:
    parts = [staged(committer, {"x": b"zero"}, 0), staged(committer, {"x/y": b"ones"}, 1)]
    with pytest.raises(ConfigError, match="directory"):
        publish(committer, *parts)


def test_a_late_writer_does_not_touch_what_came_after_it(
    bucket: CountingBucket, committer: BucketCommitter
) -> None:
    late = staged(committer, {"x": b"old"})
    committer.discard_attempt(C0, late)
    publish(committer, staged(committer, {"x": b"new"}))
    with pytest.raises(NotWholeError):
        committer.put_file(C0, late, "x", b"OLD")
    with pytest.raises(NotWholeError):
        committer.seal(C0, Seal(late, 0, 9.0, ()))
    assert bucket.get(f"{C0}/x") == b"new"


def test_recovery_leaves_what_is_not_ours(
    bucket: CountingBucket, committer: BucketCommitter
) -> None:
    keys = ["trial/checkpoint_000007/of plain Ray", "trial/result.json", "tuner.pkl"]
    for key in keys:
        bucket.put(key, b"x")
    committer.recover()
    assert sorted(bucket.objects) == sorted(keys)


def test_recovery_says_what_it_completed_and_dropped(
    bucket: CountingBucket, committer: BucketCommitter
) -> None:
    attempt = staged(committer, {"x": b"1"})
    committer.place(C0, attempts=[attempt])
    recovery = BucketCommitter(bucket, "next").recover()
    assert recovery.dropped == (C0,)  # nobody but the dead driver knew that it was placed
    assert bucket.objects == {}


def test_what_cannot_be_read_is_an_error_and_not_absent(
    bucket: CountingBucket, committer: BucketCommitter
) -> None:
    bucket.put(manifest_key(C0), b"{")
    with pytest.raises(DamagedError):
        committer.manifest(C0)
    with pytest.raises(DamagedError):
        manifests_of(committer)


def test_many_threads_publish_each_their_checkpoint(committer: BucketCommitter) -> None:
    errors: list[Exception] = []

    def one(number: int) -> None:
        try:
            checkpoint = f"trial/checkpoint_{number:06d}"
            attempt = committer.begin(checkpoint)
            etag = committer.put_file(checkpoint, attempt, "x", b"1")
            files = (FileEntry("x", 1, xxhash.xxh3_128_hexdigest(b"1")),)
            committer.seal(checkpoint, Seal(attempt, 0, 0.0, files), {"x": etag})
            committer.record(committer.place(checkpoint, attempts=[attempt]).manifest)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert not errors
    assert len(manifests_of(committer)) == 16
