"""The publisher beside a bucket."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.unit.test_bucket_commit import C0, TIMEOUT_S, staged
from tests.unit.test_train_record import record
from tune_sync.errors import DamagedError, ImmutableError, NotStoredError, StoreUnreachableError
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.homes.saved_state import saved_trials
from tune_sync.homes.saved_train import drop_unnamed, go_by_record, note_stored, retire_unnamed
from tune_sync.layout import STAGING_DIR, TRAIN_RECORD, manifest_key
from tune_sync.manifest import Seal
from tune_sync.publisher import Publisher
from tune_sync.testing.memory_bucket import MemoryBucket


def test_the_publisher_works_with_it() -> None:
    committer = BucketCommitter(MemoryBucket(), "me")
    publisher = Publisher(committer)
    attempt = staged(committer, {"x": b"1"})
    publisher.record_later(committer.place(C0, attempts=[attempt]).manifest)
    publisher.drain(TIMEOUT_S)
    assert committer.manifest(C0) is not None
    publisher.retire_later(C0)
    publisher.state_written()
    publisher.flush(TIMEOUT_S)
    assert committer.manifest(C0) is None and committer.bucket.list("") == []
    assert publisher.close(TIMEOUT_S)


class HeldBucket(MemoryBucket):
    """Does not answer to the put of the first checkpoint's manifest before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()

    def put(self, key: str, data: bytes, **options: Any) -> str:
        if key == manifest_key(C0):
            assert self.goes_on.wait(TIMEOUT_S)
        return super().put(key, data, **options)


def test_a_checkpoint_that_takes_long_holds_up_no_other_and_is_not_lost_by_a_kill() -> None:
    bucket = HeldBucket()
    committer = BucketCommitter(bucket, "run")
    publisher = Publisher(committer, at_once=2)
    c1 = "trial/checkpoint_000001"
    attempts = {C0: committer.begin(C0), c1: committer.begin(c1)}
    for checkpoint, attempt in attempts.items():
        committer.seal(checkpoint, Seal(attempt, 0, 1.0, ()))
    for checkpoint, attempt in attempts.items():
        publisher.record_later(committer.place(checkpoint, attempts=[attempt]).manifest)
    publisher.wait_for(c1, TIMEOUT_S)
    assert committer.recorded() == [c1]
    after_kill = MemoryBucket()
    after_kill.objects.update(bucket.objects)
    assert BucketCommitter(after_kill, "next").recover().completed == (C0,)
    bucket.goes_on.set()
    publisher.drain(TIMEOUT_S)
    assert committer.recorded() == [C0, c1]
    assert publisher.close(TIMEOUT_S)


def test_the_publisher_tells_what_could_not_be_published() -> None:
    bucket = MemoryBucket()
    committer = BucketCommitter(bucket, "me")
    publisher = Publisher(committer)
    attempt = staged(committer, {"x": b"1"})
    placed = committer.place(C0, attempts=[attempt])
    bucket.delete([f"{C0}/x"])
    publisher.record_later(placed.manifest)
    with pytest.raises(NotStoredError, match="missing"):
        publisher.drain(TIMEOUT_S)
    assert publisher.close(TIMEOUT_S)


def test_who_asks_again_as_staging_could_not_be_deleted_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = BucketHome(MemoryBucket())
    attempt = staged(home.committer, {"x": b"1"})

    def lost(keys: object) -> None:
        if keys:
            raise StoreUnreachableError("no answer")

    with monkeypatch.context() as context:
        context.setattr(home.bucket, "delete", lost)
        home.publish(C0, False, [attempt])
    assert home.bucket.list(STAGING_DIR) != []
    home.publish(C0, False, [attempt])
    assert home.published_keys() == [C0]
    assert home.bucket.list(STAGING_DIR) == []


def test_a_bucket_with_checkpoints_and_no_state_is_no_fresh_start() -> None:
    home = BucketHome(MemoryBucket())
    assert saved_trials(home, "here") == frozenset()
    home.publish(C0, False, [staged(home.committer, {"x": b"1"})])
    with pytest.raises(DamagedError, match="here holds checkpoints"):
        saved_trials(home, "here")


def test_staging_of_ray_train_that_no_record_names_goes() -> None:
    home = BucketHome(MemoryBucket(), checkpoint_depth=0)
    names = ["checkpoint_000000", "checkpoint_000001"]
    for name in names:
        home.seal(name, Seal(home.begin(name), 0, 1.0, (), ranks_count=1))
    home.bucket.put(TRAIN_RECORD, record(names[0]))
    drop_unnamed(home, "here")
    assert home.committer.recover().completed == (names[0],)
    assert home.bucket.list(STAGING_DIR) == []
    note_stored(home)
    go_by_record(home, "here", resumes=True)
    home.bucket.delete([TRAIN_RECORD])
    with pytest.raises(DamagedError, match=f"here .*{TRAIN_RECORD}"):
        go_by_record(home, "here", resumes=True)


def test_one_answer_that_there_is_no_record_of_ray_train_drops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = BucketHome(MemoryBucket(), checkpoint_depth=0)
    name = "checkpoint_000000"
    home.seal(name, Seal(home.begin(name), 0, 1.0, (), ranks_count=1))
    home.bucket.put(TRAIN_RECORD, record(name))
    info = home.bucket.info
    with monkeypatch.context() as wrong:
        wrong.setattr(home.bucket, "info", lambda k: None if k == TRAIN_RECORD else info(k))
        drop_unnamed(home, "here")
    assert home.committer.recover().completed == (name,)


def test_a_name_that_ray_train_will_report_again_is_free_when_it_is_resumed() -> None:
    home = BucketHome(MemoryBucket(), checkpoint_depth=0)
    for name in ("checkpoint_000000", "checkpoint_000001"):
        home.seal(name, Seal(attempt := home.begin(name), 0, 1.0, (), ranks_count=1))
        home.publish(name, False, [attempt])
    home.bucket.put(TRAIN_RECORD, record("checkpoint_000000"))
    with pytest.raises(ImmutableError):
        home.begin("checkpoint_000001")
    note_stored(home)
    retire_unnamed(home, "here")
    assert home.published_keys() == ["checkpoint_000000"]
    home.begin("checkpoint_000001")
