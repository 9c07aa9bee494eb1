"""What a store answers of its bucket or place says of no checkpoint that it is wrong or lost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import fsspec
import pytest

from tests.unit.test_bucket_commit import C0, TIMEOUT_S, publish, staged
from tests.unit.test_bucket_lease import wait_until
from tests.unit.test_bucket_tries import NEW, stored, whole
from tune_sync.behind.arrivals import Arrivals
from tune_sync.buckets.bucket import ObjectInfo
from tune_sync.buckets.fsspec_bucket import FsspecBucket
from tune_sync.buckets.retry import Retry, RetryBucket
from tune_sync.errors import (
    ConfigError,
    LeaseLostError,
    NotStoredError,
    StoreDeniedError,
    TuneSyncError,
)
from tune_sync.homes.bucket import lease as bucket_lease
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.homes.bucket.lease import BucketLease
from tune_sync.homes.bucket.listings import is_there
from tune_sync.layout import LEASE_KEY, STAGING_DIR, manifest_key
from tune_sync.manifest import Manifest, Seal
from tune_sync.publisher import Publisher
from tune_sync.refused import may_pass
from tune_sync.sending.backlog import Accepted
from tune_sync.testing.memory_bucket import MemoryBucket


class AwayBucket(MemoryBucket):
    """Is "not there" for so many requests of a kind, as libraries tell it: a HEAD has no body."""

    def __init__(self) -> None:
        super().__init__()
        self.away: dict[str, int] = {}
        self.words = "An error occurred (NoSuchBucket): The specified bucket does not exist"

    def _is_away(self, verb: str, key: str) -> bool:
        for what, left_count in self.away.items():
            if left_count and f"{verb} {key}".startswith(what):
                self.away[what] -= 1
                return True
        return False

    def _raise_if_away(self, verb: str, key: str) -> None:
        if self._is_away(verb, key):
            raise OSError(self.words)

    def info(self, key: str) -> ObjectInfo | None:
        return None if self._is_away("info", key) else super().info(key)

    def list(self, prefix: str) -> list[ObjectInfo]:
        self._raise_if_away("list", prefix)
        return super().list(prefix)

    def get(self, key: str, *args: Any) -> bytes:
        self._raise_if_away("get", key)
        return super().get(key, *args)

    def put(self, key: str, data: bytes | memoryview, **options: Any) -> str:
        self._raise_if_away("put", key)
        return super().put(key, data, **options)

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys[:1]:
            self._raise_if_away("delete", key)
        super().delete(keys)


@pytest.fixture
def bucket() -> AwayBucket:
    return AwayBucket()


def opened(bucket: MemoryBucket) -> RetryBucket:
    """With the errors that it has in a run."""
    return RetryBucket(lambda: bucket, "s3://bucket", Retry(1))


@pytest.mark.parametrize("verb", [f"put {manifest_key(C0)}", "list trial", f"get {STAGING_DIR}"])
@pytest.mark.parametrize(
    "words", ["NoSuchBucket", "PermanentRedirect", "IllegalLocationConstraint"]
)
def test_a_restore_keeps_what_was_reported_where_the_bucket_is_away_once(
    bucket: AwayBucket, verb: str, words: str
) -> None:
    whole(BucketCommitter(bucket, "dead"), NEW, 1.0)
    bucket.away, bucket.words = {verb: 1}, words
    committer = BucketCommitter(opened(bucket), "next")
    with pytest.raises(ConfigError, match=words):
        committer.recover()
    assert committer.recover().completed == (C0,)
    assert stored(bucket) == NEW


def test_the_end_of_a_run_keeps_what_was_placed_where_the_bucket_is_away_once(
    bucket: AwayBucket,
) -> None:
    committer = BucketCommitter(opened(bucket), "me")
    committer.place(C0, attempts=[whole(committer, NEW, 1.0)])
    bucket.away = {f"put {manifest_key(C0)}": 1}
    with pytest.raises(ConfigError):
        committer.sweep()
    assert committer.sweep().completed == (C0,)
    assert stored(bucket) == NEW


def test_a_published_checkpoint_stays_where_the_look_at_its_manifest_finds_no_bucket(
    bucket: AwayBucket,
) -> None:
    committer = BucketCommitter(opened(bucket), "me")
    publish(committer, whole(committer, NEW, 1.0))
    bucket.put(f"{STAGING_DIR}/{C0}/late.begun.json", b"{}")  # so it is looked at
    bucket.away = {"info": 1}
    assert BucketCommitter(opened(bucket), "next").recover().dropped == ()
    assert stored(bucket) == NEW


def test_the_publisher_takes_it_for_nothing_that_lasts(bucket: AwayBucket) -> None:
    committer = BucketCommitter(opened(bucket), "me")
    publisher = Publisher(committer)
    placed = committer.place(C0, attempts=[staged(committer, {"x": b"1"})])
    bucket.away = {f"put {manifest_key(C0)}": 1000}
    publisher.record_later(placed.manifest)
    with pytest.raises(NotStoredError, match="bucket"):
        publisher.drain(TIMEOUT_S)
    assert publisher.refused() == {}
    assert all(map(may_pass, publisher.failed().values()))
    bucket.away = {}
    publisher.drain(TIMEOUT_S)
    assert committer.manifest(C0) is not None
    assert publisher.close(TIMEOUT_S)


def test_what_nodes_sent_is_not_lost_where_the_bucket_is_away(bucket: AwayBucket) -> None:
    lease = BucketLease(bucket, "me")
    lease.acquire()
    home = BucketHome(opened(bucket), "me", 1)
    committer = home.committer
    attempt = staged(committer, {"x": b"1"})
    published: list[str] = []
    refused: list[tuple[str, TuneSyncError]] = []
    arrivals = Arrivals(home, published.append, lambda *what: refused.append(what))
    bucket.away = {f"list {STAGING_DIR}/{C0}": 1}
    complete = [Accepted(C0, direct=[attempt])]
    assert isinstance(arrivals.publish(complete), ConfigError)
    assert (published, refused) == ([], [])
    assert arrivals.publish(complete) is None
    assert (published, refused) == ([C0], [])
    lease.release()


def test_a_bucket_that_is_away_takes_no_lease_and_is_not_asked_in_the_control_loop(
    bucket: AwayBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_lease, "HEARTBEAT_S", 0.01)
    lease = BucketLease(opened(bucket), "me")
    lease.acquire()
    away = {"info": 10**6, "get": 10**6, "put": 10**6}
    bucket.away = away
    end_s = time.monotonic() + 0.3
    while time.monotonic() < end_s:
        lease.check_known()
        time.sleep(0.01)
    assert away["info"] < 10**6 - 2
    bucket.away = {}
    bucket.delete([LEASE_KEY])  # by a hand: that is told, again without a request
    wait_until(lambda: lease._lost)
    bucket.away = {"get": 10**6}
    with pytest.raises(LeaseLostError, match="now by nobody"):
        lease.check_known()
    bucket.away = {}
    lease.release()


def test_what_is_published_is_stored_also_where_nothing_may_be_deleted(
    bucket: AwayBucket, caplog: pytest.LogCaptureFixture
) -> None:
    committer = BucketCommitter(opened(bucket), "me")
    publisher = Publisher(committer)
    bucket.away, bucket.words = {"delete": 10**6}, "AccessDenied"
    for number in range(3):
        checkpoint = f"trial/checkpoint_{number:06}"
        attempt = committer.begin(checkpoint)
        committer.seal(checkpoint, Seal(attempt, 0, 1.0, ()))
        publisher.record_later(committer.place(checkpoint, attempts=[attempt]).manifest)
    publisher.drain(TIMEOUT_S)
    assert publisher.failed() == {} and len(committer.recorded()) == 3
    assert caplog.text.count("left in staging") == 1
    bucket.away = {}
    assert BucketCommitter(opened(bucket), "next").recover().dropped == ()
    assert len(committer.recorded()) == 3 and bucket.list(STAGING_DIR) == []
    assert publisher.close(TIMEOUT_S)


def test_one_refusal_serves_all_that_wait_and_the_rest_is_tried_next(bucket: AwayBucket) -> None:
    committer = BucketCommitter(opened(bucket), "me")
    publisher = Publisher(committer)
    away = {"list": 10**6}
    bucket.away, bucket.words = away, "AccessDenied"
    count = 40
    for number in range(count):
        checkpoint = f"trial/checkpoint_{number:06}"
        attempt = committer.begin(checkpoint)
        committer.seal(checkpoint, Seal(attempt, 0, 1.0, ()))
        publisher.record_later(committer.place(checkpoint, attempts=[attempt]).manifest)
    with pytest.raises(NotStoredError, match="may not do that"):
        publisher.drain(TIMEOUT_S)
    assert 10**6 - away["list"] <= 3 * count  # a refusal is tried once more, and one drain
    before = away["list"]
    with pytest.raises(NotStoredError, match="may not do that"):
        publisher.drain(TIMEOUT_S)
    assert before - away["list"] <= 4  # two tell of all, and each is tried once more
    bucket.away = {}
    publisher.drain(TIMEOUT_S)
    assert len(committer.recorded()) == count
    assert publisher.close(TIMEOUT_S)


def test_one_refusal_of_a_delete_serves_all_and_one_that_cannot_go_holds_up_no_other() -> None:
    asked: list[str] = []
    refused = {str(number) for number in range(20)}

    class Deleter:
        def retire(self, checkpoint: str) -> None:
            asked.append(checkpoint)
            if checkpoint in refused:
                raise StoreDeniedError(checkpoint)

    publisher = Publisher(Deleter())  # type: ignore[arg-type]
    for number in range(20):
        publisher.retire_now(str(number))
        publisher.settle(TIMEOUT_S)
    assert len(asked) <= 2 * 20
    refused.difference_update(map(str, range(1, 20)))
    for number in range(20, 23):
        publisher.retire_now(str(number))
        publisher.settle(TIMEOUT_S)
    assert publisher._undone.keys() == {"0"}
    assert publisher.close(TIMEOUT_S)


def test_one_that_cannot_go_at_the_end_holds_up_no_other() -> None:
    refused, deleted, recorded, is_away = {"t/0"}, list[str](), list[str](), [True]

    class Fussy:
        def retire(self, checkpoint: str) -> None:
            if checkpoint in refused:
                raise StoreDeniedError(checkpoint)
            deleted.append(checkpoint)

        def record(self, manifest: Manifest) -> None:
            if is_away[0] or manifest.checkpoint in refused:
                raise StoreDeniedError(manifest.checkpoint)
            recorded.append(manifest.checkpoint)

    publisher = Publisher(Fussy())  # type: ignore[arg-type]
    names = [f"t/{number}" for number in range(4)]
    for name in names:
        publisher.record_later(Manifest(name, "me", 0.0, (), ()))
    assert publisher._records.wait(TIMEOUT_S) == 0
    is_away[0] = False
    with pytest.raises(NotStoredError) as told:
        publisher.drain(TIMEOUT_S)
    assert sorted(recorded) == names[1:]
    assert "t/0" in str(told.value) and "t/1" not in str(told.value)
    for name in names:
        publisher.retire_later(name)
    publisher.state_written()
    publisher.state_written()
    assert publisher.close(TIMEOUT_S)
    assert sorted(deleted) == names[1:]


class OneAnswer(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Says of an object and of its bucket alike that it is not there, as gcsfs does."""

    def info(self, path: str, **options: Any) -> Any:
        raise FileNotFoundError(path)

    ls = cat_file = info


def test_through_fsspec_too_no_object_is_missed_in_a_bucket_that_is_away() -> None:
    def make() -> FsspecBucket:
        return FsspecBucket(OneAnswer, "bucket/exp")

    bucket = RetryBucket(make, "gs://bucket/exp", Retry(1))
    for ask in (bucket.get, bucket.list, partial(is_there, bucket)):
        with pytest.raises(ConfigError, match="there is no bucket"):
            ask("key")
