"""What one node has staged, and what of it is sent next, and removed. Pure: no I/O, no clock.

The driver says which attempts it waits for (`wanted`), which are published, and which nobody
needs any more (`dropped`). Without a driver all that is staged is sent, oldest first.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from tune_sync import layout
from tune_sync.sending.orders import Orders


class Phase(enum.Enum):
    """How far an attempt is."""

    STAGED = "staged"
    SENDING = "sending"
    STORED = "stored"


@dataclass(frozen=True, slots=True)
class Item:
    """One sealed attempt on this node.

    Attributes:
        checkpoint: Key of the checkpoint that it is of.
        attempt: Its id on this node.
        sealed_s: When it was sealed: the order of the queue.
        size_bytes: Of all its files.
        stored_as: Its id at the destination; "" before it is sealed there.
    """

    checkpoint: str
    attempt: str
    sealed_s: float
    size_bytes: int
    stored_as: str = ""


class SendQueue:
    """One node's queue. For one thread at a time.

    Args:
        limit_bytes: More than this is not staged: writers wait.
        only_wanted: Send only what the driver wants, as long as there is a driver.

    Attributes:
        is_alone: The driver has died: all is sent that nobody said to drop.
    """

    def __init__(self, limit_bytes: int, only_wanted: bool = False) -> None:
        self._limit_bytes = limit_bytes
        self._only_wanted = only_wanted
        self._items: dict[str, Item] = {}
        self._sending: set[str] = set()
        self._failed: dict[str, str] = {}
        self._orders = Orders()
        self.is_alone = False

    def add(self, item: Item) -> None:
        """Take in a sealed attempt; a second time, nothing happens."""
        self._items.setdefault(item.attempt, item)

    def tell(self, orders: Orders) -> None:
        """What the driver says now."""
        self._orders = orders

    def next(self) -> Item | None:
        """What is to be sent now, if anything; it counts as being sent from here on."""
        todo = self._in_turn()
        item = min(todo, key=self._turn, default=None)
        if item is not None:
            self._sending.add(item.attempt)
        return item

    def sent(self, attempt: str, stored_as: str) -> None:
        """It is sealed at the destination, under another id."""
        self._sending.discard(attempt)
        self._items[attempt] = replace(self._items[attempt], stored_as=stored_as)

    def put_back(self, attempt: str) -> None:
        """It could not be sent now."""
        self._sending.discard(attempt)

    def give_up(self, attempt: str, reason: str) -> None:
        """It can never be sent."""
        self._sending.discard(attempt)
        self._failed[attempt] = reason

    def removable(self, *, is_short: bool = False) -> list[Item]:
        """What this node need not keep any more.

        A trial's newest stays while there is room: if it restarts here, it need not be fetched.

        Args:
            is_short: There is no room at all.
        """
        newest = set() if is_short else self._newest()
        return [i for i in self._items.values() if self._is_removable(i, newest)]

    def removed(self, attempt: str) -> None:
        """It is not there any more."""
        self._items.pop(attempt, None)
        self._sending.discard(attempt)
        self._failed.pop(attempt, None)

    def phase(self, attempt: str) -> Phase | None:
        """How far an attempt is; None if it is not here."""
        item = self._items.get(attempt)
        if item is None:
            return None
        if item.stored_as:
            return Phase.STORED
        return Phase.SENDING if attempt in self._sending else Phase.STAGED

    def is_dropped(self, attempt: str) -> bool:
        """Whether nobody needs it any more."""
        return self._orders.is_closing or attempt in self._orders.dropped

    def items(self) -> list[Item]:
        """All that is here."""
        return list(self._items.values())

    def failed(self) -> dict[str, str]:
        """Attempt -> why it can never be sent."""
        return dict(self._failed)

    @property
    def used_bytes(self) -> int:
        """What is staged and has to stay."""
        done = {*self._orders.published, *self._orders.dropped}
        return sum(i.size_bytes for i in self._items.values() if i.attempt not in done)

    @property
    def has_room(self) -> bool:
        """Whether another checkpoint may be staged."""
        return self.used_bytes < self._limit_bytes

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to be sent."""
        return not self._sending and not any(True for _ in self._unsent())

    # Inside

    def _unsent(self) -> Iterable[Item]:
        return (
            item
            for item in self._items.values()
            if not item.stored_as
            and item.attempt not in self._sending
            and item.attempt not in self._failed
            and item.attempt not in self._orders.dropped
        )

    def _in_turn(self) -> Iterable[Item]:
        orders = self._orders
        if orders.is_closing:
            return ()
        if self.is_alone:
            return self._unsent()
        if self._only_wanted:
            return (item for item in self._unsent() if item.attempt in orders.wanted)
        waits = {*orders.held_back} - {*orders.wanted}
        return (item for item in self._unsent() if item.attempt not in waits)

    def _turn(self, item: Item) -> tuple[int, float, str]:
        wanted = self._orders.wanted
        rank = wanted.index(item.attempt) if item.attempt in wanted else len(wanted)
        return rank, item.sealed_s, item.attempt

    def _newest(self) -> set[str]:
        """The newest checkpoint of each trial."""
        newest: dict[str, str] = {}
        for item in self._items.values():
            trial = layout.parent(item.checkpoint)
            newest[trial] = max(newest.get(trial, ""), item.checkpoint, key=layout.by_age)
        return set(newest.values())

    def _is_removable(self, item: Item, newest: Collection[str]) -> bool:
        if item.attempt in self._sending:
            return False
        if self._orders.is_closing or item.attempt in self._orders.dropped:
            return True
        if item.attempt not in self._orders.published:
            return False
        total_bytes = sum(i.size_bytes for i in self._items.values())
        return item.checkpoint not in newest or total_bytes >= self._limit_bytes
