"""Who may write an experiment directory: a lease with an owner, a heartbeat and a fence.

The lease is one small JSON file. Whoever starts a run takes it, and refreshes its heartbeat
while the run lives. A lease is free to take when its owner is surely dead (a process of this
machine that is gone) or silent for `LEASE_TTL_S`. Whoever lost it learns so before anything of it
becomes visible, because the file then holds another owner's id; that check is the fence.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tune_sync.errors import LeaseHeldError, LeaseLostError, TuneSyncError
from tune_sync.homes import disk, kinds
from tune_sync.homes.lease_lock import locked
from tune_sync.homes.replacing import replace_file
from tune_sync.homes.store import LocalStore
from tune_sync.layout import INTERNAL_DIR, LEASE_KEY
from tune_sync.process import has_ended, is_stopped
from tune_sync.process import machine as _machine
from tune_sync.process import start_of as _start_of

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# A driver silent for this long is taken for dead, if it cannot be looked at. Shorter would let a
# driver that swaps or is stopped for a moment lose its run; longer delays a new start elsewhere.
LEASE_TTL_S = 30.0
HEARTBEAT_S = 5.0
# How often it is looked at for the control loop, which waits for no disk.
LOOK_S = 1.0
# What the owner's id begins with while a directory is only tidied: the run that had it goes on.
TIDYING = "tidying-"
# How far the clocks of hosts may be apart. More is nothing to wait for.
CLOCKS_DIFFER_S = 60.0
# How long a run that ends waits for a disk that may hang. By then its lease has run out.
GIVE_S = LEASE_TTL_S
# Runs of this process that have ended and could not give their lease back.
_ENDED: set[str] = set()


@dataclass(frozen=True, slots=True)
class Holder:
    """What the lease file says about its owner."""

    owner: str
    host: str
    pid: int
    machine: str
    process_start: str
    heartbeat_s: float
    heartbeat_up_s: float = 0.0

    @classmethod
    def here(cls, owner: str, now_s: float) -> Holder:
        """This process, alive now."""
        return cls(
            owner, socket.gethostname(), os.getpid(), _machine(), _start_of(os.getpid()),
            now_s, time.clock_gettime(time.CLOCK_BOOTTIME),
        )  # fmt: skip

    def to_json(self) -> str:
        """What the lease file holds."""
        return json.dumps({"format_version": 1, **asdict(self)})

    @property
    def left(self) -> Holder:
        """The same run, silent for so long that nobody takes it for alive."""
        return replace(self, heartbeat_s=0.0, heartbeat_up_s=0.0)

    @property
    def is_surely_dead(self) -> bool:
        """Whether it is a process of this machine, or a run of this process, that has ended."""
        return _surely_dead(self)

    @property
    def is_of_here(self) -> bool:
        """Whether it is a process of this machine, as far as that can be told."""
        return bool(self.machine) and self.machine == _machine()

    def age_s(self, now_s: float) -> float:
        """Seconds since its last sign of life. On its own machine no clock change matters."""
        if self.heartbeat_up_s and self.is_of_here:
            return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - self.heartbeat_up_s)
        return max(0.0, now_s - self.heartbeat_s)

    def ahead_s(self, now_s: float) -> float:
        """How far its clock is ahead of this one's: its lease runs out later by as much."""
        return 0.0 if self.is_of_here else max(0.0, self.heartbeat_s - now_s)


class Lease:
    """The lease on one experiment directory.

    Args:
        root: The experiment directory.
        owner: Id of this run; unique.
        clock: Seconds since the epoch.
        look: Raises if what was to be taken is not there any more; called within the lock.
    """

    def __init__(
        self, root: Path, owner: str, clock: Callable[[], float] = time.time,
        look: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._file = root / LEASE_KEY
        self._store = LocalStore(root)
        self._owner = owner
        self._clock = clock
        self._look = look
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._dead: Holder | None = None
        self._lost = ""

    def acquire(
        self, *, may_take: Callable[[Holder], bool] = lambda holder: False,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """Take the lease and keep it alive from a background thread.

        Args:
            may_take: Says of a live holder that its lease may be taken all the same.
            goes_on: Asked all the time: without the run, the lease runs out.

        Raises:
            LeaseHeldError: Another live run has it; names host, process and age.
            StoreError, OSError: It cannot be written.
        """
        with self._store.room(self._file):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._take(may_take)
        self._thread = threading.Thread(
            target=self._beat, args=(goes_on,), name="tune_sync-lease", daemon=True
        )
        self._thread.start()

    def _take(self, may_take: Callable[[Holder], bool]) -> None:
        with locked(self._file):
            self._look()  # else who has moved it aside would be refused its new directory
            holder = read_holder(self._file)
            if holder is not None and holder.owner != self._owner:
                now_s = self._clock()
                age_s = holder.age_s(now_s)
                check_not_stopped(holder, self._owner, self._file.parent.parent)
                is_dead = age_s >= LEASE_TTL_S or _surely_dead(holder)
                if not is_dead and not may_take(holder):
                    raise in_use(self._file.parent.parent, holder, now_s, LEASE_TTL_S)
                self._dead = holder.left if is_dead else None
            self._write(self._me(), is_durable=True)

    def check(self) -> None:
        """The fence. Raises LeaseLostError if this run is no longer the owner."""
        check_owner(self._file.parent.parent, self._owner)

    def look(self) -> None:
        """See `RunLease.look`. Raises what its disk does, but for `LeaseLostError`."""
        try:
            self.check()
            self._lost = ""  # who only tidies hands it back
        except LeaseLostError as error:
            self._lost = str(error)

    def check_known(self) -> None:
        """As `check`, from what was seen last: waits for no disk."""
        if self._lost:
            raise LeaseLostError(self._lost)

    def release(self) -> None:
        """Give the lease back, if it is still ours. May be called twice.

        Where that cannot be written it runs out by itself: no failure of a run that ends.
        """
        self._give_to(None)

    def leave(self) -> None:
        """As `release`, but its agents may still write, until the next one takes it, at once.

        For a run that ends, and whose nodes still send what they have.
        """
        self._give_to(self._me().left)

    def hand_back(self) -> None:
        """As `release`; but a run that had died gets it back: its agents may still send."""
        self._give_to(self._dead)

    def _give_to(self, next_holder: Holder | None) -> None:
        self._stop.set()
        giving = threading.Thread(
            target=self._give, args=(next_holder,), name="tune_sync-lease-end", daemon=True
        )
        try:
            giving.start()
        except RuntimeError:  # no more threads, or this process ends
            self._give(next_holder)
            return
        giving.join(GIVE_S)
        if giving.is_alive():
            self._run_out(f"its disk does not answer within {GIVE_S:.0f} s")

    def _give(self, next_holder: Holder | None) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        try:
            self._replace_by(next_holder)
        except FileNotFoundError:  # somebody removed the directory, or moved the lease away with it
            _ENDED.add(self._owner)
        except (TuneSyncError, OSError) as error:
            self._run_out(error)

    def _run_out(self, why: object) -> None:
        _ENDED.add(self._owner)
        logger.warning(
            "%s: the lease is left to run out in %.0f s: %s",
            self._file.parent.parent, LEASE_TTL_S, why,
        )  # fmt: skip

    def _replace_by(self, next_holder: Holder | None) -> None:
        with locked(self._file):
            holder = read_holder(self._file)
            if holder is None or holder.owner != self._owner:
                return
            if next_holder is None:
                self._file.unlink()
            else:
                self._write(next_holder, is_durable=True)

    def _beat(self, goes_on: Callable[[], bool]) -> None:
        beaten_s = time.monotonic()
        while not self._stop.wait(min(LOOK_S, HEARTBEAT_S)) and goes_on():
            try:
                self.look()
                if time.monotonic() - beaten_s >= HEARTBEAT_S:
                    beaten_s = time.monotonic()
                    self._refresh()
            except (TuneSyncError, OSError):
                continue  # a full or absent disk, no locks just now: the next beat tries again

    def _refresh(self) -> None:
        with locked(self._file):
            holder = read_holder(self._file)
            if holder is not None and holder.owner == self._owner:
                self._write(self._me(), is_durable=False)

    def _me(self) -> Holder:
        return Holder.here(self._owner, self._clock())

    def _write(self, holder: Holder, *, is_durable: bool) -> None:
        replace_file(self._store, LEASE_KEY, holder.to_json().encode(), is_durable=is_durable)


@disk.reopened
def read_holder(file: Path) -> Holder | None:
    """Who holds the lease in `file`; None if nobody does, or the file is unreadable."""
    try:
        return holder_from_json(kinds.read_file(file))
    except FileNotFoundError:
        return None


def holder_from_json(data: bytes) -> Holder | None:
    """Decode what a lease holds; None if it is not one."""
    try:
        body = json.loads(data)
        holder = Holder(
            str(body["owner"]), str(body["host"]), int(body["pid"]), str(body["machine"]),
            str(body["process_start"]), float(body["heartbeat_s"]),
            float(body.get("heartbeat_up_s", 0.0)),
        )  # fmt: skip
        return holder if math.isfinite(holder.heartbeat_s) else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def live_holder(root: Path, clock: Callable[[], float] = time.time) -> Holder | None:
    """The live holder of the lease on experiment directory `root`, or None."""
    holder = read_holder(root / LEASE_KEY)
    if holder is None or _surely_dead(holder) or holder.age_s(clock()) >= LEASE_TTL_S:
        return None
    return holder


def check_owner(root: Path, owner: str) -> None:
    """Raise LeaseLostError unless `owner` holds the lease on experiment directory `root`."""
    holder = read_holder(root / LEASE_KEY)
    if holder is None and not os.path.lexists(root / INTERNAL_DIR):
        raise LeaseLostError(
            f"{root} is no longer owned by this run: {INTERNAL_DIR} is not there any more, so the "
            "directory, or what is mounted there, has gone; this run must stop: nothing more is "
            "written; mount it, or put it back, and restore"
        )
    check_holder(holder, owner, root)


def check_holder(holder: Holder | None, owner: str, where: object) -> None:
    """Raise LeaseLostError unless `holder`, which has the lease on `where`, is `owner`."""
    if holder is None or holder.owner != owner:
        by = f"process {holder.pid} on host {holder.host}" if holder else "nobody"
        raise LeaseLostError(
            f"{where} is no longer owned by this run (now by {by}); this run must stop: "
            "nothing more is written"
        )


def in_use(where: object, holder: Holder, now_s: float, ttl_s: float = 0.0) -> LeaseHeldError:
    """The error of a start where a live run is.

    Args:
        where: The experiment directory.
        holder: Of its lease.
        now_s: Seconds since the epoch.
        ttl_s: How long after its last sign of life it may be taken from it; 0 if that is not known
            here.
    """
    age_s, ahead_s = holder.age_s(now_s), holder.ahead_s(now_s)
    if ahead_s > CLOCKS_DIFFER_S:  # when it runs out says nothing of whether it is alive
        return LeaseHeldError(
            f"{where} is in use by process {holder.pid} on host {holder.host}, as far as can be "
            f"told: its last sign of life is {ahead_s:.0f} s ahead of the clock here. Set the "
            "clocks right, and stop that run, or choose another name for a new one; if surely no "
            f"driver runs there, remove {where}/{LEASE_KEY}, and try again"
        )
    wait = f" (if it is dead, wait {max(0.0, ttl_s + ahead_s - age_s):.0f} s)" if ttl_s else ""
    return LeaseHeldError(
        f"{where} is in use by a live run: process {holder.pid} on host {holder.host}, last heard "
        f"of {age_s:.0f} s ago; stop that run{wait}, or choose another name for a new one"
    )


def check_not_stopped(holder: Holder, owner: str, where: object) -> None:
    """Raise LeaseHeldError if `owner` only tidies, and the run is stopped on this machine.

    When it goes on, what it had taken for reported has to be there. Whoever takes it over ends it.
    """
    is_over = not holder.heartbeat_s or holder.owner in _ENDED  # its process may do other things
    is_tidied = owner.startswith(TIDYING) and holder.is_of_here and not is_over
    if is_tidied and is_stopped(holder.pid, holder.process_start):
        raise LeaseHeldError(
            f"{where} is in use by process {holder.pid}, which is stopped: let it go on "
            f"(kill -CONT {holder.pid}), or end it first"
        )


def _surely_dead(holder: Holder) -> bool:
    if holder.owner in _ENDED:
        return True
    return holder.is_of_here and has_ended(holder.pid, holder.process_start)
