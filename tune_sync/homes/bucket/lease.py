"""Who may write an experiment in a bucket: the lease of `lease`, as one object.

Taking it and each heartbeat are conditional puts where the store can: of two who try, one wins.
Elsewhere a taker waits for a moment and reads back: whoever put last has it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tune_sync.buckets.bucket import Bucket
from tune_sync.errors import (
    LeaseHeldError,
    PutConflictError,
    StoreUnreachableError,
    TuneSyncError,
)
from tune_sync.homes.bucket.listings import is_there
from tune_sync.homes.lease import (
    Holder,
    check_holder,
    check_not_stopped,
    holder_from_json,
    in_use,
)
from tune_sync.layout import LEASE_KEY

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# Longer than on a disk: a store may not answer for a while, and each heartbeat is a request that
# is paid for. A new start elsewhere waits so long after a driver's node is lost.
BUCKET_LEASE_TTL_S = 90.0
HEARTBEAT_S = 15.0
# Between a put and reading it back, where no put is conditional: another who read the same lease
# has surely put its own by then.
SETTLE_S = 2.0
TAKE_TRIES_COUNT = 3
# Where no put is conditional, as on disks behind hdfs:// or smb://, some empty an object before
# they fill it anew: so what cannot be read may be a heartbeat. Elsewhere it may be what a proxy
# says. It is looked at again so often.
UNREADABLE_LOOKS_COUNT = 10
UNREADABLE_PAUSE_S = 0.2
# That nobody has it takes so many looks to be believed: it ends a run for good.
ABSENT_LOOKS_COUNT = 3
ABSENT_PAUSE_S = 1.0
ABSENT_BEATS_COUNT = 2


class BucketLease:
    """The lease on one experiment in a bucket.

    Args:
        bucket: Rooted at the experiment.
        owner: Id of this run; unique.
        clock: Seconds since the epoch.
        sleep: Waits for seconds.
        where: The experiment's URL, for messages.
    """

    def __init__(
        self, bucket: Bucket, owner: str, clock: Callable[[], float] = time.time,
        *, sleep: Callable[[float], None] = time.sleep, where: str = "this experiment",
    ) -> None:  # fmt: skip
        self._bucket = bucket
        self._owner = owner
        self._clock = clock
        self._sleep = sleep
        self._where = where
        self._lost = False
        self._beaten_s, self._missed_count = 0.0, 0
        self._seen: Holder | None = None
        self._dead: Holder | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(
        self, *, may_take: Callable[[Holder], bool] = lambda holder: False,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """Take the lease and keep it alive from a background thread.

        Args:
            may_take: Says of a live holder that its lease may be taken all the same.
            goes_on: Asked before each heartbeat: without the run, the lease runs out.

        Raises:
            LeaseHeldError: Another live run has it; names host, process and age.
            StoreDeniedError, StoreUnreachableError: It could not be looked at.
        """
        for _ in range(TAKE_TRIES_COUNT):
            if self._try_take(may_take):
                break
        else:
            raise LeaseHeldError(
                f"{self._where} is just being taken by another run; choose another name"
            )
        self._beaten_s = self._clock()
        self._thread = threading.Thread(
            target=self._beat, args=(goes_on,), name="tune_sync-lease", daemon=True
        )
        self._thread.start()

    def check(self) -> None:
        """The fence. Raises LeaseLostError if this run is no longer the owner.

        If nobody can tell now, it raises StoreUnreachableError, as if the store were away.
        """
        check_owner(self._bucket, self._owner, self._where)

    def look(self) -> None:
        """See `RunLease.look`: nothing, as it would be a request."""

    def check_known(self) -> None:
        """As `check`, from what the last heartbeat saw: makes no request."""
        if self._lost:
            check_holder(self._seen, self._owner, self._where)

    def release(self) -> None:
        """Give the lease back, if it is still ours. May be called twice.

        If the store does not answer, the lease runs out by itself: that is no failure of the run.
        """
        self._give_to(None)

    def leave(self) -> None:
        """See `lease.Lease.leave`."""
        self._give_to(self._me().left)

    def hand_back(self) -> None:
        """See `lease.Lease.hand_back`."""
        self._give_to(self._dead)

    def _give_to(self, next_holder: Holder | None) -> None:
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        try:
            holder, etag, _ = _look(self._bucket)
            if holder is None or holder.owner != self._owner:
                return
            if next_holder is None:
                self._bucket.delete([LEASE_KEY])
            else:
                self._bucket.put(LEASE_KEY, next_holder.to_json().encode(), if_match=etag)
        except (OSError, TuneSyncError) as error:
            logger.warning("the lease is left to run out in %.0f s: %s", BUCKET_LEASE_TTL_S, error)

    def _try_take(self, may_take: Callable[[Holder], bool]) -> bool:
        holder, etag, exists = _look(self._bucket)
        if holder is not None and holder.owner != self._owner:
            check_not_stopped(holder, self._owner, self._where)
            now_s = self._clock()
            lives = _lives(holder, now_s)
            if lives and not may_take(holder):
                raise in_use(self._where, holder, now_s, BUCKET_LEASE_TTL_S)
            self._dead = None if lives else holder.left
        try:
            self._put(etag, exists)
        except PutConflictError:
            return False
        if self._bucket.capabilities.conditional_put:
            return True
        self._sleep(SETTLE_S)
        found = read_holder(self._bucket)
        return found is not None and found.owner == self._owner

    def _put(self, etag: str, exists: bool) -> None:
        me = self._me().to_json().encode()
        self._bucket.put(LEASE_KEY, me, create_only=not exists, if_match=etag)

    def _me(self) -> Holder:
        return Holder.here(self._owner, self._clock())

    def _beat(self, goes_on: Callable[[], bool]) -> None:
        while not self._stop.wait(HEARTBEAT_S) and goes_on():
            try:
                holder, etag, exists = _look(self._bucket)
                if holder is None and not self._is_sure(exists=exists):
                    continue
                # `check` tells whoever wants to write; but who only tidies hands it back.
                self._seen = holder
                self._lost = holder is None or holder.owner != self._owner
                if not self._lost:
                    self._put(etag, exists)
                    self._beaten_s, self._missed_count = self._clock(), 0
            except (OSError, TuneSyncError):
                continue  # the next beat tries again

    def _is_sure(self, *, exists: bool) -> bool:
        """Whether nobody has it, which what is between here and the store may say, too.

        One that is not there has to be missed by two beats. One that cannot be read is nobody's
        once others might have taken it.
        """
        self._missed_count = 0 if exists else self._missed_count + 1
        is_overdue = self._clock() - self._beaten_s > BUCKET_LEASE_TTL_S
        return is_overdue if exists else self._missed_count >= ABSENT_BEATS_COUNT


def read_holder(bucket: Bucket) -> Holder | None:
    """Who holds the lease in `bucket`; None if nobody does, or it is and stays unreadable."""
    try:
        found = holder_from_json(bucket.get(LEASE_KEY))
        looks_count = UNREADABLE_LOOKS_COUNT
        while found is None and looks_count:
            looks_count -= 1
            time.sleep(UNREADABLE_PAUSE_S)
            found = holder_from_json(bucket.get(LEASE_KEY))
        return found
    except FileNotFoundError:
        return None


def live_holder(bucket: Bucket, clock: Callable[[], float] = time.time) -> Holder | None:
    """The live holder of the lease in `bucket`, or None."""
    holder = read_holder(bucket)
    return holder if holder is not None and _lives(holder, clock()) else None


def check_owner(bucket: Bucket, owner: str, where: str = "this experiment") -> None:
    """Raise LeaseLostError unless `owner` holds the lease in `bucket`.

    Raises:
        StoreUnreachableError: There is one, and it cannot be read: nobody can tell now.
    """
    for look in range(ABSENT_LOOKS_COUNT):
        if look:
            time.sleep(ABSENT_PAUSE_S)
        if (holder := read_holder(bucket)) is not None:
            break
    else:
        if is_there(bucket, LEASE_KEY):
            raise StoreUnreachableError(
                f"{where}: {LEASE_KEY} cannot be read: what came is not a lease; look at what is "
                "between here and the store, as a proxy, and at that object"
            )
    check_holder(holder, owner, where)


def _lives(holder: Holder, now_s: float) -> bool:
    return holder.age_s(now_s) < BUCKET_LEASE_TTL_S and not holder.is_surely_dead


def _look(bucket: Bucket) -> tuple[Holder | None, str, bool]:
    """The holder, the e-tag that a conditional put needs, and whether there is an object.

    The e-tag comes first: if the object changes before it is read, the put is refused. A bucket
    that is away raises.
    """
    found = bucket.info(LEASE_KEY)
    if found is None and is_there(bucket, LEASE_KEY):
        found = bucket.info(LEASE_KEY)
    if found is None:
        return None, "", False
    etag = found.etag if bucket.capabilities.conditional_put else ""
    return read_holder(bucket), etag, True
