"""One answer that is not the store's, at each request in turn: nothing is lost, and no run ends."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.manifests import manifests_of
from tests.unit.clock import Clock
from tests.unit.test_bucket_lease import wait_until
from tests.unit.test_bucket_listings import published, sealed
from tests.unit.test_left_behind import NODE, OWNER, leave
from tests.unit.test_node_sender import FIRST
from tune_sync import layout
from tune_sync.behind.arrivals import Arrivals
from tune_sync.behind.left_behind import find, send_left
from tune_sync.buckets.bucket import ObjectInfo
from tune_sync.errors import (
    ImmutableError,
    LeaseLostError,
    StoreError,
    StoreUnreachableError,
    TuneSyncError,
    UnreadableManifestError,
)
from tune_sync.homes.bucket import lease as bucket_lease
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.homes.bucket.lease import BucketLease
from tune_sync.homes.bucket.snapshot import take_snapshot
from tune_sync.homes.recorded import recorded_numbers
from tune_sync.layout import LEASE_KEY
from tune_sync.sending.backlog import Accepted
from tune_sync.testing.memory_bucket import MemoryBucket

PAGE = b"<html>sign in</html>"
C = [f"trial/checkpoint_{number:06d}" for number in range(5)]


class Paged(MemoryBucket):
    """Gives `count` answers that are not its own, from request number `at` on.

    Args:
        kind: "page": of a web server, as if all were well. "none": nothing is there. "half": a
            listing is cut, and all else is right. A put is an error, as most libraries tell it.
    """

    def __init__(self, kind: str, at: int = 0, count: int = 1) -> None:
        super().__init__()
        self.kind, self.at, self.count = kind, at, count
        self.asked_count = 0
        self.wrong: list[str] = []

    def _is_wrong(self, what: str) -> bool:
        self.asked_count += 1
        if not self.at <= self.asked_count < self.at + self.count:
            return False
        self.wrong.append(what)
        return self.kind != "half" or what.startswith("list")

    def info(self, key: str) -> ObjectInfo | None:
        if self._is_wrong(f"info {key}"):
            return None if self.kind == "none" else ObjectInfo(key, len(PAGE), 0.0, "")
        return super().info(key)

    def get(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        if self._is_wrong(f"get {key}"):
            if self.kind == "none":
                raise FileNotFoundError(key)
            return PAGE
        return super().get(key, offset_bytes, length_bytes)

    def list(self, prefix: str) -> list[ObjectInfo]:
        found = super().list(prefix)
        is_wrong = self._is_wrong(f"list {prefix}")
        return found[: len(found) // 2 if self.kind == "half" else 0] if is_wrong else found

    def list_dir(self, prefix: str) -> tuple[builtins.list[ObjectInfo], builtins.list[str]]:
        asked_count, self.asked_count = self.asked_count, -(10**9)
        found = super().list_dir(prefix)
        self.asked_count = asked_count
        return ([], []) if self._is_wrong(f"list_dir {prefix}") else found

    def put(
        self, key: str, data: bytes | memoryview, *, create_only: bool = False, if_match: str = ""
    ) -> str:
        if self._is_wrong(f"put {key}"):
            raise OSError("ETag Header missing from response")
        return super().put(key, data, create_only=create_only, if_match=if_match)

    def delete(self, keys: Sequence[str]) -> None:
        if not self._is_wrong(f"delete {keys}"):  # else some libraries say that it is done
            super().delete(keys)

    def sees(self, at: int, count: int) -> None:
        """From now on."""
        self.at, self.count, self.asked_count, self.wrong = at, count, 0, []


def each(kind: str, count: int, make: Callable[[Paged], Any]) -> Iterator[tuple[Paged, Any]]:
    """A bucket made anew for each request that what follows makes."""
    at = 1
    while True:
        bucket = Paged(kind)
        made = make(bucket)
        bucket.sees(at, count)
        yield bucket, made
        if not bucket.wrong:
            assert at > 5, "nothing was asked"
            return
        at += 1


def left_by_a_crash(bucket: Paged) -> None:
    """Two are published, one is placed, and one is sealed alone."""
    bucket.put(layout.FORMAT_KEY, b"{}")
    committer = BucketCommitter(bucket, "dead")
    for number in (0, 2):
        published(committer, C[number])
    committer.place(C[1], attempts=[sealed(committer, C[1])])
    committer._note_placed(C[1], committer._orders[C[1]])
    sealed(committer, C[3])


def stored(bucket: Paged) -> list[str]:
    committer = BucketCommitter(bucket, "look")
    return [
        m.checkpoint
        for m in manifests_of(committer)
        if all(f"{m.checkpoint}/{file.path}" in bucket.objects for file in m.files)
    ]


@pytest.mark.parametrize("kind", ["page", "none", "half"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_recovery_loses_nothing_that_was_reported(kind: str, count: int) -> None:
    for bucket, _ in each(kind, count, left_by_a_crash):
        with suppress(OSError, TuneSyncError):  # whoever asks for it tries again
            BucketCommitter(bucket, "next").recover()
        wrong, bucket.count = bucket.wrong, 0
        BucketCommitter(bucket, "next but one").recover()
        assert stored(bucket) == C[:4], wrong


@pytest.mark.parametrize("kind", ["page", "none"])
def test_a_node_removes_the_only_copy_of_none(kind: str, tmp_path: Path) -> None:
    def make(bucket: Paged) -> Path:
        top = tmp_path / str(len(list(tmp_path.iterdir())))
        leave(top / "staging" / OWNER / NODE, FIRST)
        return top / "staging"

    for bucket, top in each(kind, 1, make):
        (left,) = find(top)
        with left.taken(), suppress(OSError, TuneSyncError):  # whoever asks for it tries again
            send_left(left, BucketHome(bucket), lambda checkpoint: True)
        wrong, bucket.count = bucket.wrong, 0
        BucketCommitter(bucket, "next").recover()
        assert stored(bucket) == [FIRST] or find(top), wrong


def test_what_comes_while_one_is_dropped_keeps_no_other_from_recovery() -> None:
    """A node that has not heard of its driver's end goes on sending."""

    class Late(MemoryBucket):
        def delete(self, keys: Sequence[str]) -> None:
            super().delete(keys)
            if f"{C[0]}/a" in keys:
                self.put(f"{C[0]}/late", b"late")

    bucket = Late()
    committer = BucketCommitter(bucket, "dead")
    committer.put_file(C[0], committer.begin(C[0]), "a", b"1")  # and never sealed
    committer.place(C[1], attempts=[sealed(committer, C[1])])
    committer._note_placed(C[1], committer._orders[C[1]])
    found = BucketCommitter(bucket, "next").recover()
    assert (found.completed, found.dropped, found.kept) == ((C[1],), (), (C[0],))
    BucketCommitter(bucket, "next").recover()
    assert bucket.list(C[0]) == []


def test_a_snapshot_of_a_bucket_that_is_away_is_not_taken_again() -> None:
    class Away(MemoryBucket):
        asked_count = 0

        def list_dir(self, prefix: str) -> tuple[builtins.list[ObjectInfo], builtins.list[str]]:
            self.asked_count += 1
            raise StoreUnreachableError("away, after all tries")

    bucket = Away()
    with ThreadPoolExecutor(1) as pool, pytest.raises(StoreUnreachableError):
        take_snapshot(BucketCommitter(bucket, "next"), pool)
    assert bucket.asked_count == 1


def test_what_a_node_has_stays_where_the_manifest_cannot_be_read(tmp_path: Path) -> None:
    root, bucket = tmp_path / "staging" / OWNER / NODE, MemoryBucket()
    leave(root, FIRST)
    bucket.put(layout.manifest_key(FIRST), b'{"please": "sign in"}')
    (left,) = find(tmp_path / "staging")
    with left.taken(), pytest.raises(UnreadableManifestError, match="published and never changes"):
        send_left(left, BucketHome(bucket), lambda checkpoint: True)
    assert find(tmp_path / "staging")
    with pytest.raises(UnreadableManifestError, match="published and never changes"):
        BucketCommitter(bucket).begin(FIRST)


def test_a_checkpoint_is_published_if_its_manifest_says_so() -> None:
    for bucket, _ in each("page", 1, left_by_a_crash):
        try:
            for checkpoint in C[4:]:
                sealed(BucketCommitter(bucket, "run"), checkpoint)
        except ImmutableError as error:
            raise AssertionError(bucket.wrong) from error
        except OSError:
            pass


@pytest.mark.parametrize("kind", ["page", "none"])
def test_what_nodes_sent_is_not_given_up_for_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_lease, "ABSENT_PAUSE_S", 0.0)
    monkeypatch.setattr(bucket_lease, "UNREADABLE_PAUSE_S", 0.0)
    held: list[BucketLease] = []

    def make(bucket: Paged) -> tuple[BucketHome, str]:
        held.append(BucketLease(bucket, "me"))
        held[-1].acquire()
        home = BucketHome(bucket, "me")
        return home, sealed(home.committer, C[4])

    refused: list[tuple[str, TuneSyncError]] = []
    for bucket, (home, attempt) in each(kind, 1, make):
        done: list[str] = []
        arrivals = Arrivals(home, done.append, lambda *what: refused.append(what))
        try:
            arrivals.publish([Accepted(C[4], direct=[attempt])])
        except LeaseLostError as error:
            raise AssertionError(bucket.wrong) from error
        except (OSError, TuneSyncError):
            pass
        wrong, bucket.count = bucket.wrong, 0
        if not done:
            arrivals.publish([Accepted(C[4], direct=[attempt])])
        assert (done, refused) == ([C[4]], []), wrong
        held[-1].release()


@pytest.mark.parametrize("kind", ["page", "none", "half"])
def test_a_restore_sees_what_is_there_or_says_that_it_cannot(kind: str) -> None:
    def make(bucket: Paged) -> None:
        left_by_a_crash(bucket)
        BucketCommitter(bucket, "next").recover()

    for bucket, _ in each(kind, 1, make):
        with ThreadPoolExecutor(1) as pool:
            there = take_snapshot(BucketCommitter(bucket), pool)
        assert recorded_numbers(there) == {"trial": {0, 1, 2, 3}}, bucket.wrong
        for checkpoint in C[:4]:
            assert there.manifest(checkpoint) is not None, bucket.wrong
            assert there.info(f"{checkpoint}/b") is not None, bucket.wrong


def test_a_restore_from_listings_that_stay_cut_is_an_error() -> None:
    bucket = Paged("half")
    left_by_a_crash(bucket)
    BucketCommitter(bucket, "next").recover()
    bucket.sees(1, 10**6)
    with ThreadPoolExecutor(1) as pool, pytest.raises(StoreError, match="a listing did not show"):
        take_snapshot(BucketCommitter(bucket), pool)


@pytest.mark.parametrize("kind", ["page", "none"])
def test_no_objects_stay_of_a_delete_that_was_not_done(kind: str) -> None:
    for bucket, _ in each(kind, 1, left_by_a_crash):
        with suppress(OSError, TuneSyncError):  # whoever asks for it tries again
            BucketCommitter(bucket, "run").retire(C[0])
        wrong, bucket.count = bucket.wrong, 0
        BucketCommitter(bucket, "next").recover()
        left = [key for key in bucket.objects if C[0] in key]
        assert stored(bucket) == C[0 if left else 1 : 4], wrong


@pytest.mark.parametrize("kind", ["page", "none"])
def test_one_heartbeat_that_finds_none_loses_no_lease(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_lease, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(bucket_lease, "UNREADABLE_LOOKS_COUNT", 0)
    for at in range(1, 7):
        bucket = Paged(kind)
        lease = BucketLease(bucket, "me")
        lease.acquire()
        bucket.sees(at, 1)
        wait_until(lambda: bucket.asked_count > 20)  # noqa: B023
        lease.check_known()
        assert bucket.wrong
        lease.release()


@pytest.mark.parametrize("kind", ["page", "none"])
def test_one_answer_to_the_fence_loses_no_lease(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_lease, "ABSENT_PAUSE_S", 0.0)
    monkeypatch.setattr(bucket_lease, "UNREADABLE_PAUSE_S", 0.0)
    bucket = Paged(kind)
    lease = BucketLease(bucket, "me")
    lease.acquire()
    bucket.sees(1, 1)
    lease.check()
    bucket.sees(1, 10**6)
    with pytest.raises(StoreUnreachableError if kind == "page" else LeaseLostError):
        lease.check()
    bucket.count = 0
    lease.release()


def test_a_lease_that_stays_unreadable_is_lost_once_others_may_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucket_lease, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(bucket_lease, "UNREADABLE_PAUSE_S", 0.0)
    bucket, clock = Paged("page"), Clock()
    lease = BucketLease(bucket, "me", clock)
    lease.acquire()
    bucket.objects[LEASE_KEY] = b"{"
    seen_count = bucket.asked_count
    wait_until(lambda: bucket.asked_count > seen_count + 50)
    lease.check_known()
    clock.now_s += bucket_lease.BUCKET_LEASE_TTL_S + 1
    wait_until(lambda: lease._lost)
    with pytest.raises(LeaseLostError):
        lease.check_known()
    lease.release()
