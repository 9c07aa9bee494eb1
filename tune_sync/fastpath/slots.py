"""Slots of shared memory within a budget, made in the background and used again and again.

Fresh shared memory is slow: the kernel clears each page when it is first touched. So a slot is
kept when its checkpoint is gone, for the next one of about its size.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tune_sync.fastpath.folder import SHARED_MEMORY, folder_of, make_private, sweep
from tune_sync.fastpath.pages import memory_available_bytes, room_bytes
from tune_sync.fastpath.sizing import SLOTS, SPARE
from tune_sync.fastpath.slot import Slot, State
from tune_sync.field_checks import check_above_zero
from tune_sync.process import in_forks

logger = logging.getLogger(__name__)

_PAGE_BYTES = 4096
# Part of a slot that may stay unused: what is not data (names, numbers) changes its length.
_UNUSED_PART = 1 / 64
_UNUSED_BYTES = 1 << 20
HEADROOM_BYTES = 64 << 10
# How long to wait for a save that is on its way, before the slow way is taken.
WAIT_S = 60.0
WARNING_PERIOD_S = 60.0
SAVING_SLOWLY = (
    "saving slowly; remove files that are not needed, or set a larger max_checkpoints_in_memory"
)
CLOSE_WAIT_S = 30.0


@dataclass
class _Account:
    """What the budget is spent on. Guarded by the pool's lock."""

    slots: list[Slot] = field(default_factory=list)
    in_making: list[int] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(s.capacity_bytes for s in self.slots) + sum(self.in_making)


class Slots:
    """All slots of this process.

    Args:
        root: A directory in shared memory.
        memory_limit_bytes: Most that slots take together. None: half of what is free now.
        max_checkpoints_in_memory: Most slots of about one size.
        threads: Threads that make pages. None: by the number of processors.
        on_made: Called with each new slot, from the thread that made it.
        if_taken: What comes of it where all are taken, and what to do, for a warning.

    Raises:
        ConfigError: A limit that is no whole number above zero.
    """

    def __init__(
        self,
        root: Path = SHARED_MEMORY,
        *,
        memory_limit_bytes: int | None = None,
        max_checkpoints_in_memory: int = SLOTS,
        threads: int | None = None,
        on_made: Callable[[Slot], None] = lambda slot: None,
        if_taken: str = SAVING_SLOWLY,
    ) -> None:
        if memory_limit_bytes is not None:
            given = f"memory_limit_bytes={memory_limit_bytes!r}"
            check_above_zero(given, memory_limit_bytes, "a whole number of bytes")
        given = f"max_checkpoints_in_memory={max_checkpoints_in_memory!r}"
        check_above_zero(given, max_checkpoints_in_memory, "a whole number")
        self.folder = folder_of(root)
        self._limit_bytes = memory_limit_bytes
        self._most = max_checkpoints_in_memory
        self._threads = threads
        self._on_made = on_made
        self._if_taken = if_taken
        self._next_warning_s = 0.0
        self._is_closed = False
        self._renew()
        in_forks(self._renew)
        atexit.register(self.close)

    def take(self, need_bytes: int, *, wait_s: float = WAIT_S) -> Slot | None:
        """A warm slot for `need_bytes`, or None if the budget has none: take the slow way then.

        Makes a slot if there is none, which takes a second for every few GiB; later calls find
        it. Give it back when the checkpoint is in its place. May be called from any thread; it
        never raises for want of memory.

        Args:
            need_bytes: Bytes of the checkpoint.
            wait_s: How long to wait for a slot that is being made or filled.
        """
        deadline_s = time.monotonic() + wait_s
        while True:
            with self._changed:
                found = self._free(need_bytes)
                if found is not None:
                    found.is_busy = True
                    return found
                claim_bytes = self._claim(need_bytes)
                if claim_bytes is None:
                    if not (self._is_one_coming(need_bytes) and self._wait(deadline_s)):
                        self._warn_if_all_are_taken(need_bytes)
                        return None
                    continue
            made = self._make(claim_bytes, is_busy=True)
            self.prepare(need_bytes)
            return made

    def prepare(self, need_bytes: int, count: int | None = None) -> None:
        """Make slots for checkpoints of `need_bytes` in the background. Returns at once.

        Args:
            need_bytes: Bytes of a checkpoint.
            count: Slots that there shall be. None: as many as are allowed.

        Raises:
            ConfigError: `need_bytes` is no whole number above zero.
        """
        check_above_zero(f"size_bytes={need_bytes!r}", need_bytes, "a whole number of bytes")
        with self._changed:
            wanted = min(count or self._most, self._most) - self._count(need_bytes)
            claims = [c for _ in range(wanted) if (c := self._claim(need_bytes)) is not None]
        for claim_bytes in claims:
            run = threading.Thread(target=self._make, args=(claim_bytes,), daemon=True)
            run.start()

    def give_back(self, slot: Slot) -> None:
        """Say that `slot` is filled and in its place, or that filling it failed."""
        with self._changed:
            slot.mark()
            slot.is_busy = False
            self._changed.notify_all()

    def keep(self, slot: Slot) -> None:
        """Say that `slot` never comes back: it stays taken, and nobody waits for it."""
        with self._changed:
            slot.is_kept = True
            self._changed.notify_all()  # who waits has to look whether another one may come

    def give_away(self, slot: Slot) -> None:
        """Say that the file of `slot` is somebody else's now, and nobody here writes to it again.

        Another slot is made for it, in the background, if there is none.
        """
        with self._changed:
            self._account.slots.remove(slot)
            self._changed.notify_all()  # who waits for it has to look for another
        slot.close()
        self.prepare(slot.capacity_bytes - HEADROOM_BYTES, 1)

    def close(self) -> None:
        """Give all memory back; checkpoints that are linked elsewhere stay."""
        atexit.unregister(self.close)
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: not self._account.in_making, CLOSE_WAIT_S)
            slots, self._account.slots = self._account.slots, []
        for slot in slots:
            slot.close()

    def is_there(self) -> bool:
        """Whether there is shared memory that only this user may enter. Warns if not."""
        return self._make_folder()

    def _renew(self) -> None:
        """Have none. Those that a forked process finds are its parent's, who may be locking now."""
        self._account = _Account()
        self._changed = threading.Condition()

    def _free(self, need_bytes: int) -> Slot | None:
        for slot in list(self._account.slots):
            if slot.is_busy:
                continue
            state = slot.state
            if state is State.SPOILED:
                self._drop(slot)
            elif state is State.FREE and _fits(slot.capacity_bytes, need_bytes):
                return slot
        return None

    def _drop(self, slot: Slot) -> None:
        self._account.slots.remove(slot)
        slot.close()

    def _count(self, need_bytes: int) -> int:
        sizes = [s.capacity_bytes for s in self._account.slots] + self._account.in_making
        return sum(_fits(size, need_bytes) for size in sizes)

    def _is_one_coming(self, need_bytes: int) -> bool:
        sizes = [s.capacity_bytes for s in self._account.slots if s.is_busy and not s.is_kept]
        return any(_fits(size, need_bytes) for size in sizes + self._account.in_making)

    def _warn_if_all_are_taken(self, need_bytes: int) -> None:
        if not self._is_closed and self._count(need_bytes) >= self._most:
            self._warn(
                f"all {self._most} slots for {need_bytes} bytes are being filled or hold files "
                f"that are in use; {self._if_taken}"
            )

    def _wait(self, deadline_s: float) -> bool:
        left_s = deadline_s - time.monotonic()
        return left_s > 0 and self._changed.wait(left_s)

    def _claim(self, need_bytes: int) -> int | None:
        """Reserve budget for one more slot; None if there is none. Called with the lock."""
        size_bytes = -(-(need_bytes + HEADROOM_BYTES) // _PAGE_BYTES) * _PAGE_BYTES
        if self._is_closed or self._count(need_bytes) >= self._most or not self._make_folder():
            return None
        sweep(self.folder)
        self._make_room(size_bytes)
        if reason := self._reason_against(size_bytes):
            self._warn(reason)
            return None
        self._account.in_making.append(size_bytes)
        return size_bytes

    def _make_room(self, size_bytes: int) -> None:
        idle = [s for s in self._account.slots if not s.is_busy and s.state is State.FREE]
        for slot in idle:
            if not self._reason_against(size_bytes):
                return
            self._drop(slot)

    def _reason_against(self, size_bytes: int) -> str:
        free_bytes, total_bytes = room_bytes(self.folder)
        available_bytes = memory_available_bytes()
        after_bytes = self._account.size_bytes + size_bytes
        if after_bytes > self._limit(free_bytes, available_bytes):
            return (
                f"checkpoints of {size_bytes} bytes pass the memory limit of "
                f"{self._limit_bytes} bytes; set a larger memory_limit_bytes to save them fast"
            )
        in_making_bytes = sum(self._account.in_making)
        if free_bytes - in_making_bytes - size_bytes < total_bytes * SPARE:
            return (
                f"{self.folder.parent} has {free_bytes} of {total_bytes} bytes left, too few for a "
                f"checkpoint of {size_bytes} bytes and {SPARE:.0%} to spare; make it larger "
                "(mount -o remount,size=…, or --shm-size for a container) to save fast"
            )
        if 0 <= available_bytes < in_making_bytes + size_bytes:
            return (
                f"this machine, or its container, has {available_bytes} bytes of memory left, too "
                f"few for a checkpoint of {size_bytes} bytes; give it more to save fast"
            )
        return ""

    def _limit(self, free_bytes: int, available_bytes: int) -> int:
        if self._limit_bytes is None:
            if available_bytes >= 0:
                free_bytes = min(free_bytes, available_bytes)
            self._limit_bytes = free_bytes // 2
        return self._limit_bytes

    def _make(self, size_bytes: int, *, is_busy: bool = False) -> Slot | None:
        slot = None
        try:
            slot = self._made(size_bytes)
        finally:  # whatever it was: who waits for the slot, or for the end, does so in vain else
            with self._changed:
                self._account.in_making.remove(size_bytes)
                if slot is not None and self._is_closed:
                    slot.close()
                    slot = None
                if slot is not None:
                    slot.is_busy = is_busy
                    self._account.slots.append(slot)
                self._changed.notify_all()
        return slot

    def _made(self, size_bytes: int) -> Slot | None:
        try:
            slot = Slot(self.folder, size_bytes)
        except OSError as error:
            self._warn(f"no slot of {size_bytes} bytes in {self.folder}: {error}; saving slowly")
            return None
        try:
            slot.warm(self._threads)
            self._on_made(slot)
        except BaseException as error:
            slot.close()
            if not isinstance(error, OSError):
                raise
            self._warn(f"no memory for a slot of {size_bytes} bytes: {error}; saving slowly")
            return None
        return slot

    def _make_folder(self) -> bool:
        try:
            make_private(self.folder)
        except OSError as error:
            self._warn(f"no shared memory in {self.folder}: {error}; saving slowly")
            return False
        return True

    def _warn(self, message: str) -> None:
        # A training loop saves again and again.
        if time.monotonic() >= self._next_warning_s:
            self._next_warning_s = time.monotonic() + WARNING_PERIOD_S
            logger.warning(message)


def _fits(capacity_bytes: int, need_bytes: int) -> bool:
    unused_bytes = capacity_bytes - need_bytes
    return 0 <= unused_bytes <= max(_UNUSED_BYTES, capacity_bytes * _UNUSED_PART)
