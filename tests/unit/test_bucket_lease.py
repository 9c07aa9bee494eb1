"""Who may write an experiment in a bucket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import pytest

from tests.unit.clock import Clock
from tune_sync.errors import LeaseHeldError, LeaseLostError, StoreUnreachableError
from tune_sync.homes.bucket import lease as bucket_lease
from tune_sync.homes.bucket.lease import BUCKET_LEASE_TTL_S, BucketLease, live_holder, read_holder
from tune_sync.homes.lease import TIDYING, Holder
from tune_sync.layout import LEASE_KEY
from tune_sync.process import machine, start_of
from tune_sync.testing.memory_bucket import MemoryBucket

TIMEOUT_S = 60.0
FAR = Holder("other", "far", 12, "another machine", "345", 1000.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=[True, False], ids=["conditional", "read back"])
def bucket(request: pytest.FixtureRequest) -> MemoryBucket:
    return MemoryBucket(conditional_put=request.param)


@pytest.fixture
def made() -> Iterator[list[BucketLease]]:
    leases: list[BucketLease] = []
    yield leases
    for lease in leases:
        lease.release()


def mine(
    bucket: MemoryBucket, clock: Clock, made: list[BucketLease], owner: str = "me", **options: Any
) -> BucketLease:
    made.append(BucketLease(bucket, owner, clock, **{"sleep": lambda s: None} | options))
    return made[-1]


def leave(bucket: MemoryBucket, **changes: object) -> None:
    """Leave a lease behind, as of a process elsewhere unless told otherwise."""
    holder = replace(FAR, **changes)  # type: ignore[arg-type]
    bucket.put(LEASE_KEY, holder.to_json().encode())


def wait_until(holds: Any) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_free_bucket_is_taken_and_given_back(
    bucket: MemoryBucket, clock: Clock, made: list[BucketLease]
) -> None:
    lease = mine(bucket, clock, made)
    lease.acquire()
    holder = live_holder(bucket, clock)
    assert holder is not None and holder.owner == "me"
    lease.check()
    lease.release()
    lease.release()
    assert bucket.objects == {}


def test_a_live_holder_is_named_with_its_age(
    bucket: MemoryBucket, clock: Clock, made: list[BucketLease]
) -> None:
    leave(bucket)
    clock.now_s += BUCKET_LEASE_TTL_S - 1
    with pytest.raises(LeaseHeldError, match=r"s3://b/exp .*process 12 on host far.* 89 s ago"):
        mine(bucket, clock, made, where="s3://b/exp").acquire()
    holder = read_holder(bucket)
    assert holder is not None and holder.owner == "other"


def test_a_silent_holder_loses_it(
    bucket: MemoryBucket, clock: Clock, made: list[BucketLease]
) -> None:
    leave(bucket)
    clock.now_s += BUCKET_LEASE_TTL_S
    mine(bucket, clock, made).acquire()
    mine(bucket, clock, made).check()


def test_a_dead_process_of_this_machine_loses_it_at_once(
    bucket: MemoryBucket, clock: Clock, made: list[BucketLease]
) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    here = Holder.here("other", clock())
    bucket.put(LEASE_KEY, replace(here, pid=process.pid).to_json().encode())
    assert live_holder(bucket, clock) is None
    mine(bucket, clock, made).acquire()


def test_a_live_holder_may_be_replaced_if_the_caller_says_so(
    bucket: MemoryBucket, clock: Clock, made: list[BucketLease]
) -> None:
    first = mine(bucket, clock, made, "first")
    first.acquire()
    mine(bucket, clock, made, "second").acquire(may_take=lambda holder: holder.owner == "first")
    with pytest.raises(LeaseLostError, match="now by process"):
        first.check()
    first.release()
    mine(bucket, clock, made, "second").check()  # the loser did not give back what is not its own


@pytest.mark.parametrize("body", [b"", b"{", b'{"owner": "x"}', b"[]"])
def test_an_unreadable_lease_is_free(
    bucket: MemoryBucket, clock: Clock, made: list[BucketLease], body: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(bucket_lease, "UNREADABLE_PAUSE_S", 0.0)
    bucket.put(LEASE_KEY, body)
    assert read_holder(bucket) is None
    mine(bucket, clock, made).acquire()


class Together(MemoryBucket):
    """The first puts of so many wait for each other: all of these have looked before."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._have_looked = False
        self._all_looked = threading.Barrier(count, self._let_go)

    def _let_go(self) -> None:
        self._have_looked = True

    def put(self, key: str, data: bytes | memoryview, **condition: Any) -> str:
        if threading.current_thread() is not threading.main_thread() and not self._have_looked:
            self._all_looked.wait(TIMEOUT_S)
        return super().put(key, data, **condition)


@pytest.mark.parametrize("is_free", [True, False])
def test_of_many_who_take_at_once_one_has_it(
    clock: Clock, made: list[BucketLease], *, is_free: bool
) -> None:
    bucket = Together(12)
    if not is_free:
        leave(bucket)
        clock.now_s += BUCKET_LEASE_TTL_S
    leases = [mine(bucket, clock, made, f"run {n}") for n in range(12)]

    def take(lease: BucketLease) -> bool:
        try:
            lease.acquire()
        except LeaseHeldError:
            return False
        return True

    with ThreadPoolExecutor(12) as pool:
        assert sum(pool.map(take, leases)) == 1


def test_without_conditions_who_put_last_has_it(clock: Clock, made: list[BucketLease]) -> None:
    bucket = MemoryBucket(conditional_put=False)
    lease = mine(bucket, clock, made, sleep=lambda s: leave(bucket))
    with pytest.raises(LeaseHeldError):
        lease.acquire()


def test_the_heartbeat_goes_on_while_the_run_lives(
    bucket: MemoryBucket, clock: Clock, made: list[BucketLease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_lease, "HEARTBEAT_S", 0.01)
    mine(bucket, clock, made).acquire()
    clock.now_s += 50

    def is_fresh() -> bool:
        holder = read_holder(bucket)
        return holder is not None and holder.heartbeat_s == clock.now_s

    wait_until(is_fresh)


def test_a_heartbeat_that_fails_is_tried_again(
    clock: Clock, made: list[BucketLease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_lease, "HEARTBEAT_S", 0.01)
    failed = threading.Event()

    class Away(MemoryBucket):
        away = False

        def info(self, key: str) -> Any:
            if self.away:
                failed.set()
                raise StoreUnreachableError("away")
            return super().info(key)

    bucket = Away()
    lease = mine(bucket, clock, made)
    lease.acquire()
    bucket.away = True
    assert failed.wait(TIMEOUT_S)
    bucket.away = False
    clock.now_s += 50
    wait_until(lambda: read_holder(bucket).heartbeat_s == clock.now_s)  # type: ignore[union-attr]
    lease.check_known()


def test_a_lost_lease_is_known_without_a_request(
    bucket: MemoryBucket, clock: Clock, made: list[BucketLease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_lease, "HEARTBEAT_S", 0.01)
    lease = mine(bucket, clock, made)
    lease.acquire()
    lease.check_known()

    def is_known() -> bool:
        leave(bucket)  # where no put is conditional, a heartbeat may have come after it
        try:
            lease.check_known()
        except LeaseLostError:
            return True
        return False

    wait_until(is_known)
    holder = read_holder(bucket)
    assert holder is not None and holder.owner == "other"


def test_a_lease_that_is_handed_back_beats_again(
    bucket: MemoryBucket, clock: Clock, made: list[BucketLease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_lease, "HEARTBEAT_S", 0.01)
    lease = mine(bucket, clock, made)
    lease.acquire()
    held = read_holder(bucket)
    assert held is not None

    def is_lost() -> bool:
        leave(bucket, owner=f"{TIDYING}1")
        return lease._lost

    wait_until(is_lost)
    leave(bucket, **asdict(held.left))
    clock.now_s += 50
    wait_until(lambda: live_holder(bucket, clock) is not None and not lease._lost)
    lease.check_known()


def test_what_cannot_be_looked_at_is_not_taken_for_free(
    clock: Clock, made: list[BucketLease]
) -> None:
    class Away(MemoryBucket):
        def get(self, key: str, *args: Any) -> bytes:
            raise StoreUnreachableError("away")

    bucket = Away()
    leave(bucket)
    clock.now_s += 2 * BUCKET_LEASE_TTL_S
    with pytest.raises(StoreUnreachableError):
        BucketLease(bucket, "me", clock).acquire()


def test_a_lease_that_is_left_is_free_at_once_and_its_agents_may_still_write(
    bucket: MemoryBucket, clock: Clock, made: list[BucketLease]
) -> None:
    first = mine(bucket, clock, made)
    first.acquire()
    first.leave()
    first.check()
    assert live_holder(bucket, clock) is None
    mine(bucket, clock, made, "second").acquire()
    with pytest.raises(LeaseLostError):
        first.check()


def test_a_lease_is_handed_back_to_the_dead_run_that_had_it(
    bucket: MemoryBucket, clock: Clock, made: list[BucketLease]
) -> None:
    leave(bucket)
    clock.now_s += BUCKET_LEASE_TTL_S
    lease = mine(bucket, clock, made)
    lease.acquire()
    lease.hand_back()
    holder = read_holder(bucket)
    assert holder is not None and holder.owner == "other"
    assert live_holder(bucket, clock) is None


def test_what_is_only_tidied_is_not_taken_from_a_process_that_is_stopped(
    bucket: MemoryBucket, clock: Clock, made: list[BucketLease]
) -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        start = start_of(process.pid)
        leave(bucket, pid=process.pid, machine=machine(), process_start=start, heartbeat_s=1.0)
        with pytest.raises(LeaseHeldError, match=f"stopped: .*kill -CONT {process.pid}"):
            mine(bucket, clock, made, f"{TIDYING}1").acquire()
        mine(bucket, clock, made, "a restore").acquire()
    finally:
        process.kill()
        process.wait()


def test_a_heartbeat_that_is_being_written_is_no_lost_lease(
    clock: Clock, made: list[BucketLease], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind hdfs:// and smb:// an object is empty for a moment while it is put."""
    bucket = MemoryBucket(conditional_put=False)
    lease = mine(bucket, clock, made)
    lease.acquire()
    whole, looks = bucket.objects[LEASE_KEY], list[float]()

    def written_meanwhile(pause_s: float) -> None:
        looks.append(pause_s)
        bucket.objects[LEASE_KEY] = whole if len(looks) == 3 else b""

    monkeypatch.setattr(bucket_lease.time, "sleep", written_meanwhile)
    bucket.objects[LEASE_KEY] = b""
    lease.check()
    looks.clear()
    bucket.objects[LEASE_KEY] = b""
    with pytest.raises(LeaseHeldError):
        mine(bucket, clock, made, "other").acquire()
