"""Sends on what is staged on one node: the work of a node's agent, without Ray.

It keeps nothing in memory that matters: what is staged, and what of it is stored, is on the disk,
and a new one goes on from there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from tune_sync import layout
from tune_sync.behind.confirm import confirm
from tune_sync.behind.looking import PATIENCE_S, Looking
from tune_sync.behind.node_copies import NodeCopies
from tune_sync.behind.node_disk import NodeDisk
from tune_sync.behind.removing import Removing
from tune_sync.behind.settling import NO_ANSWER, Tries
from tune_sync.behind.sought import Sought
from tune_sync.behind.staged_copy import Later, StagedCopies
from tune_sync.behind.staged_send import DamagedOnWayError, NotNeededError, send_attempt
from tune_sync.errors import DamagedError, ImmutableError, PathRefusedError
from tune_sync.fastpath.folder import remove_empty
from tune_sync.homes.home import Home
from tune_sync.manifest import Seal
from tune_sync.sending.backlog import NOT_STAGED
from tune_sync.sending.bandwidth import Bandwidth, Turn
from tune_sync.sending.gate import SENDERS_COUNT
from tune_sync.sending.orders import News, Orders
from tune_sync.sending.queue import Item, SendQueue
from tune_sync.sending.retries import Retries
from tune_sync.worker import Worker

logger = logging.getLogger("ray.tune_sync")

# How often it looks for work that nobody has told it of.
LOOK_S = 2.0
# Of an attempt after a failure: each client has tried for itself by then. A thread goes on sooner.
FIRST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_REST_S = 1.0, 30.0, 5.0


class NodeSender:
    """Methods may be called from any thread.

    Args:
        root, memory: The run's staging directory here; and in shared memory, if that is used.
        open_home: Makes the destination's home; called again after each failure.
        limit_bytes, only_wanted, only_expected: See `SendQueue`.
        max_bytes_per_s: It sends no more than this; 0: no limit.
        first_pause_s, patience_s: See `FIRST_PAUSE_S`, and `Looking`.
    """

    def __init__(
        self, root: Path, open_home: Callable[[], Home], limit_bytes: int, *,
        memory: Path | None = None, only_wanted: bool = False, only_expected: bool = False,
        max_bytes_per_s: int = 0, first_pause_s: float = FIRST_PAUSE_S,
        patience_s: float = PATIENCE_S,
    ) -> None:  # fmt: skip
        self._copies, self._memory = NodeCopies(*([memory] if memory else []), root), memory
        self._places, self._seals = dict[str, StagedCopies](), dict[str, Seal]()
        self._open_home, self._first_pause_s = open_home, first_pause_s
        self._retries = Retries(first_pause_s, LONGEST_PAUSE_S, time.monotonic())
        self._queue, self._tries = SendQueue(limit_bytes, only_wanted, only_expected), Tries()
        self._looking, self._sought = Looking(self._copies, memory, patience_s), Sought(open_home)
        self._stored_count = self._stored_bytes = self._forgotten_count = 0
        self._error, self._confirming, self._is_ending = "", "", False
        self._changed, self._bandwidth = threading.Condition(), Bandwidth(max_bytes_per_s)
        self._disk, self._heard_s, self._noted = NodeDisk(root), time.monotonic(), set[str]()
        self._confirmer, self.removing = Worker("tune_sync-confirm"), Removing()
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
        self._looking.look(known, expected, self._take_in)

    def wake(self) -> None:
        """Something was sealed."""
        self.scan()

    def exchange(self, orders: Orders) -> News:
        """Hear what the driver wants, and tell how far this node is."""
        with self._changed:
            if orders.is_closing and self._queue.is_alone:  # by a restore: see `remove_sent`
                return self._news(orders)
            self._heard_s = time.monotonic()
            self._queue.is_alone = False
            published = self._queue.tell(orders)
            known = {item.attempt for item in self._queue.items()}
        if not known.issuperset(orders.expected):
            self.scan(orders.expected)
        for i in published:
            with suppress(OSError, KeyError):  # else a later process here may send it once more
                self._places[i.attempt].published(i.checkpoint, i.attempt, i.stored_as)
        self._note_parts(orders)
        self._look_for_gone()
        self._remove_some()
        with self._changed:
            self._changed.notify_all()
            news = self._news(orders)
        return self._sought.answer(news, self._looking.may_have)

    def make_room(self) -> None:
        """The disk is full: remove all that is published."""
        self._remove_some(lambda item: not item.in_memory)

    def free_memory(self, trial: str) -> bool:
        """Remove in memory what is published, of a trial or of all (""), the newest last."""
        is_meant = lambda i: i.in_memory and trial in ("", layout.parent(i.checkpoint))  # noqa: E731
        later = self.removing.add if trial else None  # its bytes count until they have gone
        found = not trial and self.removing.wait()
        found = found or any(map(is_meant, self._remove_some(later=later)))
        return found or bool(self._remove_some(is_meant, later))

    def forget(self, checkpoint: str, attempt: str) -> bool:
        """Remove an attempt that may be begun again; False while it is read, or sent."""
        with self._changed:
            is_in_use = attempt in (self._confirming, *self._queue.sending())
        if is_in_use or not self._copies.remove(checkpoint, attempt):
            return False
        self._forget(attempt)
        return True

    def has_room(self) -> bool:
        """See `SendQueue.has_room`."""
        making_bytes = self._disk.making_bytes()
        with self._changed:
            self._queue.making_bytes = making_bytes
            return self._queue.has_room

    def is_settled(self, attempt: str) -> bool:
        """Whether an attempt is stored, or the destination does not answer, or refuses it."""
        return bool(self._error) or self.why_not_stored(attempt) != NO_ANSWER

    def why_not_stored(self, attempt: str) -> str:
        """See `StagingAgent.why_not_stored`."""
        with self._changed:
            self._changed.notify_all()
            why = self._error if self._tries.failed_for(attempt) else ""
            why = self._queue.failed().get(attempt) or why or NO_ANSWER
            return "" if self._queue.is_stored(attempt) else why

    def is_stored(self, attempt: str) -> bool:
        """Whether it is. Somebody waits for that: it is sent, whoever else has it."""
        with self._changed:
            self._changed.notify_all()
            return self._queue.wait_for(attempt)

    def go_on_alone(self) -> News:
        """The driver has died: send all that is here, also what nobody told it of; see `status`."""
        self.scan()
        with self._changed:
            self._queue.is_alone = True
            self._changed.notify_all()
            return self._news(Orders())

    @property
    def unheard_s(self) -> float:
        """Seconds since the driver was last heard."""
        with self._changed:
            return time.monotonic() - self._heard_s

    @property
    def stuck_s(self) -> float:
        """Seconds since sending got on, or the driver was heard."""
        with self._changed:
            return time.monotonic() - max(self._retries.moved_s, self._heard_s)

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
        self._confirmer.close(LOOK_S)
        self._sought.close(LOOK_S)
        self.removing.close(LOOK_S)
        if not leave:
            self._copies.remove_all()
            if self._memory is not None:
                remove_empty(self._memory.parents[1])

    # Inside

    def _news(self, orders: Orders) -> News:
        return replace(
            self._queue.news(orders, time.time()), sent_bytes=self._retries.moved_bytes,
            stored_count=self._stored_count, stored_bytes=self._stored_bytes, error=self._error,
            noted=[i.attempt for i in self._queue.items() if self._knows_parts(i.attempt)],
        )  # fmt: skip

    def _look_for_gone(self) -> None:
        """Tell early what was removed before its turn: someone may be waiting for it."""
        with self._changed:
            waiting = self._queue.waiting()
        for item in waiting:
            with suppress(OSError, KeyError):  # a disk that cannot be read tells when it is sent
                if not self._places[item.attempt].is_sealed(item.checkpoint, item.attempt):
                    self._give_up_if_gone(item)

    def _knows_parts(self, attempt: str) -> bool:
        return attempt in self._noted or self._seals[attempt].is_all

    def _note_parts(self, orders: Orders) -> None:
        with self._changed:
            items = [i for i in self._queue.items() if i.attempt in orders.parts]
            todo = [i for i in items if not self._knows_parts(i.attempt)]
        for item in todo:
            with suppress(OSError, KeyError):  # told again the next time, if it is there
                copies, parts = self._places[item.attempt], orders.parts[item.attempt]
                copies.note_parts(item.checkpoint, item.attempt, parts)
                self._noted.add(item.attempt)

    def _take_in(self, copies: StagedCopies, seal: Seal, item: Item) -> None:
        is_added, attempt = False, item.attempt
        while not is_added:
            forgotten_count = self._forgotten_count
            # Without the lock: this disk may hang.
            if not copies.is_sealed(item.checkpoint, attempt):
                return  # another thread has removed it since
            with self._changed:
                if is_added := forgotten_count == self._forgotten_count:  # else look again
                    self._seals[attempt], self._places[attempt] = seal, copies
                    self._queue.add(item)
                    self._changed.notify_all()
        if not item.is_confirmed:
            self._confirmer.add(partial(self._confirm, item))

    def _confirm(self, item: Item) -> None:
        """Read what was handed over, and make it durable. Not in turn: its host may go down."""
        with self._changed:
            seal, copies = self._seals.get(item.attempt), self._places.get(item.attempt)
            if seal is None or copies is None or self._is_ending:
                return
            self._confirming = item.attempt
        try:
            confirmed = confirm(copies, item.checkpoint, seal)
        except (DamagedError, FileNotFoundError, PathRefusedError) as error:
            is_gone = isinstance(error, FileNotFoundError)
            self._give_up(item, FileNotFoundError(NOT_STAGED) if is_gone else error)
            return
        except Exception as error:  # this disk cannot be read now: whoever sends it tries again
            logger.debug("%s is not confirmed yet: %s", item.checkpoint, error)
            confirmed = seal
        finally:
            self._confirming = ""
        with self._changed:
            if item.attempt in self._seals:
                self._seals[item.attempt] = confirmed
            self._queue.confirmed(item.attempt)
            self._changed.notify_all()

    def _give_up(self, item: Item, error: Exception) -> None:
        with self._changed:
            if item.attempt not in self._seals or self._queue.is_dropped(item.attempt):
                return  # it is being removed, as nobody needs it
            self._queue.give_up(item.attempt, str(error))
        logger.error("%s cannot be sent: %s", item.checkpoint, error)

    def _remove_some(
        self, is_short: Callable[[Item], bool] = lambda item: False, later: Later | None = None
    ) -> list[Item]:
        """Remove what need not stay; returns it. See `SendQueue.removable`."""
        with self._changed:
            removable = self._queue.removable(is_short)
        return [i for i in removable if self._remove(i, later if i.in_memory else None)]

    def _remove(self, item: Item, later: Later | None) -> bool:
        has_gone = False  # as it is read just now, or its disk fails; or another thread was first
        with suppress(OSError, KeyError):
            has_gone = self._places[item.attempt].remove(item.checkpoint, item.attempt, later)
        if has_gone:
            self._forget(item.attempt)
        return has_gone

    def _forget(self, attempt: str) -> None:
        with self._changed:
            self._forgotten_count += 1
            self._queue.removed(attempt)
            self._seals.pop(attempt, None)
            self._places.pop(attempt, None)
            self._noted.discard(attempt)
            self._tries.forget(attempt)
            self._retries.forget(attempt)

    def _work(self) -> None:
        failed_count = 0
        while True:
            with self._changed:
                now_s = time.monotonic()
                # Who asks hears of a try that began after that.
                paused = () if self._tries.is_awaited else self._retries.paused(now_s)
                item = self._queue.next(paused)
                if self._is_ending:
                    return
                if item is None:
                    self._changed.wait(self._retries.wait_s(now_s, LOOK_S))
                    continue
                number = self._tries.begin()
                self._retries.begin(item.attempt, now_s)
            failed_count = 0 if self._send(item) else failed_count + 1
            if failed_count:
                pause_s = min(LONGEST_REST_S, self._first_pause_s * 2.0 ** min(failed_count - 1, 9))
                with self._changed:
                    self._tries.failed(number)
                    self._changed.wait_for(
                        lambda: self._is_ending or self._tries.is_awaited, pause_s
                    )

    def _send(self, item: Item) -> bool:
        """Whether it was sent, or never will be."""
        try:
            copies = self._places[item.attempt]
            stored_as = send_attempt(
                copies, item.checkpoint, self._seals[item.attempt], self._open_home(),
                lambda size_bytes: self._goes_on(item, size_bytes),
            )  # fmt: skip
            with suppress(OSError):  # else it is sent again if this process ends before
                copies.stored(item.checkpoint, item.attempt, stored_as)
        except NotNeededError:
            with self._changed:
                self._queue.put_back(item.attempt)
            return True
        except (DamagedError, DamagedOnWayError, ImmutableError, PathRefusedError) as error:
            self._give_up(item, error)
            return True
        except Exception as error:
            if self._give_up_if_gone(item):
                return True
            self._put_back(item, f"{item.checkpoint}: {error}")
            return False
        with self._changed:
            self._error = ""
            self._queue.sent(item.attempt, stored_as)
            self._retries.stored(item.attempt, time.monotonic())
            self._stored_count += 1
            self._stored_bytes += item.size_bytes
        return True

    def _give_up_if_gone(self, item: Item) -> bool:
        """Whether someone has removed an attempt from this node; then it can never be sent."""
        with self._changed:
            seal, copies = self._seals.get(item.attempt), self._places.get(item.attempt)
        if seal is None or copies is None or copies.is_there(item.checkpoint, seal):
            return False
        self._give_up(item, FileNotFoundError(NOT_STAGED))
        return True

    def _goes_on(self, item: Item, size_bytes: int) -> bool:
        """Whether to send so many bytes more; waits until they may be sent."""
        with self._changed:
            now_s, at_bytes = time.monotonic(), 0
            turn = Turn(size_bytes, now_s, now_s + self._bandwidth.take(size_bytes, now_s))
            while True:
                before_bytes, at_bytes = at_bytes, turn.gone_bytes(now_s)
                self._retries.goes(item.attempt, at_bytes - before_bytes, now_s)
                is_over = self._is_ending or self._queue.is_dropped(item.attempt)
                if is_over or now_s >= turn.end_s:
                    return not is_over
                self._changed.wait(min(turn.end_s - now_s, LOOK_S))
                now_s = time.monotonic()

    def _put_back(self, item: Item, error: str) -> None:
        log = logger.warning if not self._error else logger.debug
        log("cannot send now, goes on trying: %s", error)
        with self._changed:
            self._error = error
            self._queue.put_back(item.attempt, time.time())
            self._retries.failed(item.attempt, time.monotonic())
