"""Sends on what is staged on one node: the work of a node's agent, without Ray.

It keeps nothing in memory that matters: what is staged, and what of it is stored, is on the disk,
and a new one goes on from there.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.behind.staged_send import GivenUpError, send_attempt
from tune_sync.errors import DamagedError, ImmutableError, PathRefusedError, StoreFullError
from tune_sync.homes.home import Home
from tune_sync.manifest import Seal
from tune_sync.sending.orders import News, Orders
from tune_sync.sending.queue import Item, SendQueue

logger = logging.getLogger("ray.tune_sync")

# So many checkpoints of a node travel at a time; each keeps several requests under way.
SENDERS_COUNT = 2
# How often it looks for work that nobody has told it of.
LOOK_S = 2.0
# After a failure: each client has tried for itself by then.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


class NodeSender:
    """Methods may be called from any thread.

    Args:
        root: The run's staging directory on this node.
        open_home: Makes the destination's home; called again after each failure.
        limit_bytes: See `SendQueue`.
        only_wanted: See `SendQueue`.
        first_pause_s: See `FIRST_PAUSE_S`.
    """

    def __init__(
        self, root: Path, open_home: Callable[[], Home], limit_bytes: int, *,
        only_wanted: bool = False, first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:  # fmt: skip
        self._copies = StagedCopies(root)
        self._open_home = open_home
        self._first_pause_s = first_pause_s
        self._queue = SendQueue(limit_bytes, only_wanted)
        self._seals: dict[str, Seal] = {}
        self._sent_bytes = 0
        self._error = ""
        self._is_ending = False
        self._changed = threading.Condition()
        self._heard_s = time.monotonic()
        self.scan()
        self._threads = [
            threading.Thread(target=self._work, name="tune_sync-send", daemon=True)
            for _ in range(SENDERS_COUNT)
        ]
        for thread in self._threads:
            thread.start()

    def scan(self, expected: Collection[str] = ()) -> None:
        """Take in what was sealed on this node, and remove what nobody will ever seal.

        An attempt may be sealed while it grows: it is complete if its seal says so, or if it was
        reported, and so is `expected`.
        """
        with self._changed:
            known = {item.attempt for item in self._queue.items()}
        for checkpoint, attempt in self._copies.attempts():
            if attempt not in known:
                self._take_in(checkpoint, attempt, attempt in expected)
        with self._changed:
            self._changed.notify_all()

    def wake(self) -> None:
        """Something was sealed."""
        self.scan()

    def exchange(self, orders: Orders) -> News:
        """Hear what the driver wants, and tell how far this node is."""
        with self._changed:
            self._heard_s = time.monotonic()
            self._queue.is_alone = False
            self._queue.tell(orders)
            known = {item.attempt for item in self._queue.items()}
        if not known.issuperset(orders.expected):
            self.scan(orders.expected)
        self._remove_some()
        with self._changed:
            self._changed.notify_all()
            return self._news(orders)

    def make_room(self) -> None:
        """The disk is full: remove all that is published."""
        self._remove_some(is_short=True)

    def has_room(self) -> bool:
        """See `SendQueue.has_room`."""
        with self._changed:
            return self._queue.has_room

    def is_settled(self, attempt: str) -> bool:
        """Whether an attempt is stored, or the destination does not answer, or refuses it."""
        with self._changed:
            stored = any(i.attempt == attempt and i.stored_as for i in self._queue.items())
            return stored or bool(self._error) or attempt in self._queue.failed()

    def go_on_alone(self) -> None:
        """The driver has died: send all that is here."""
        with self._changed:
            self._queue.is_alone = True
            self._changed.notify_all()

    @property
    def unheard_s(self) -> float:
        """Seconds since the driver was last heard."""
        with self._changed:
            return time.monotonic() - self._heard_s

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to be sent."""
        with self._changed:
            return self._queue.is_idle

    def status(self) -> News:
        """How far this node is, for others than the driver."""
        with self._changed:
            return self._news(Orders())

    def end(self, *, leave: bool = False) -> None:
        """End the threads, and remove the staging directory, unless it is to be left."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(LOOK_S)
        if leave:
            return
        shutil.rmtree(self._copies.root, ignore_errors=True)
        with suppress(OSError):  # another node of this machine may use it
            self._copies.root.parent.rmdir()

    # Inside

    def _news(self, orders: Orders) -> News:
        items = self._queue.items()
        held = [item.attempt for item in items]
        left = [i for i in items if not i.stored_as and i.attempt not in orders.dropped]
        return News(
            held=held,
            stored={item.attempt: item.stored_as for item in items if item.stored_as},
            failed=self._queue.failed(),
            missing=[a for a in orders.expected if a not in held],
            left_count=len(left),
            left_bytes=sum(item.size_bytes for item in left),
            sent_bytes=self._sent_bytes,
            error=self._error,
        )

    def _take_in(self, checkpoint: str, attempt: str, is_expected: bool) -> None:
        try:
            seal = self._copies.seal(checkpoint, attempt)
        except DamagedError as error:
            logger.warning("%s", error)
            return
        if seal is None:
            if self._copies.is_abandoned(checkpoint, attempt):
                self._copies.remove(checkpoint, attempt)
            return
        if seal.ranks_count is None and not is_expected:
            return
        size_bytes = sum(file.size_bytes for file in seal.files)
        stored_as = self._copies.stored_as(checkpoint, attempt)
        with self._changed:
            self._seals[attempt] = seal
            self._queue.add(Item(checkpoint, attempt, seal.sealed_s, size_bytes, stored_as))

    def _remove_some(self, *, is_short: bool = False) -> None:
        with self._changed:
            removable = self._queue.removable(is_short=is_short)
        for item in removable:
            self._copies.remove(item.checkpoint, item.attempt)
            with self._changed:
                self._queue.removed(item.attempt)
                self._seals.pop(item.attempt, None)

    def _work(self) -> None:
        failed_count = 0
        while True:
            with self._changed:
                item = self._queue.next()
                if item is None and not self._is_ending:
                    self._changed.wait(LOOK_S)
                if self._is_ending:
                    return
            if item is None:
                continue
            failed_count = 0 if self._send(item) else failed_count + 1
            if failed_count:
                self._pause(failed_count)

    def _pause(self, failed_count: int) -> None:
        pause_s = min(LONGEST_PAUSE_S, self._first_pause_s * 2.0 ** (failed_count - 1))
        until_s = time.monotonic() + pause_s
        with self._changed:
            while not self._is_ending and time.monotonic() < until_s:
                self._changed.wait(until_s - time.monotonic())

    def _send(self, item: Item) -> bool:
        """Whether it was sent, or never will be."""
        try:
            stored_as = send_attempt(
                self._copies, item.checkpoint, self._seals[item.attempt], self._open_home(),
                lambda size_bytes: self._goes_on(item, size_bytes),
            )  # fmt: skip
            with suppress(StoreFullError):  # else it is sent again if this process ends before
                self._copies.stored(item.checkpoint, item.attempt, stored_as)
        except GivenUpError:
            self._put_back(item, "")
            return True
        except (DamagedError, ImmutableError, PathRefusedError) as error:
            logger.error("%s cannot be sent: %s", item.checkpoint, error)
            with self._changed:
                self._queue.give_up(item.attempt, str(error))
            return True
        except Exception as error:
            self._put_back(item, f"{item.checkpoint}: {error}")
            return False
        with self._changed:
            self._error = ""
            self._queue.sent(item.attempt, stored_as)
        return True

    def _goes_on(self, item: Item, size_bytes: int) -> bool:
        with self._changed:
            self._sent_bytes += size_bytes + 1  # tells that something moves
            return not self._is_ending and not self._queue.is_dropped(item.attempt)

    def _put_back(self, item: Item, error: str) -> None:
        if error:
            log = logger.warning if not self._error else logger.debug
            log("cannot send now, goes on trying: %s", error)
        with self._changed:
            self._error = error or self._error
            self._queue.put_back(item.attempt)
