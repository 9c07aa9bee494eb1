"""What one node has staged, and what of it is sent next, and removed. Pure: no I/O, no clock.

The driver says which attempts it waits for (`wanted`), which are published, and which nobody
needs any more (`dropped`). Where it plans what travels (`only_wanted`), nothing else is sent.
Without a driver all that is staged is sent, oldest first. What failed goes behind the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from tune_sync import layout
from tune_sync.sending.orders import News, Orders


@dataclass(frozen=True, slots=True)
class Item:
    """One sealed attempt on this node.

    Attributes:
        checkpoint: Key of the checkpoint that it is of.
        attempt: Its id on this node.
        sealed_s: When it was sealed: the order of the queue.
        size_bytes: Of all its files.
        stored_as: Its id at the destination; "" before it is sealed there. Where another node has
            sent it, that is not known, and this is its id here.
        in_memory: It is not on this node's disk, and does not count for the limit of that.
        is_confirmed: Its bytes are known; before that it is not sent.
        is_published: The driver has said so.
    """

    checkpoint: str
    attempt: str
    sealed_s: float
    size_bytes: int
    stored_as: str = ""
    in_memory: bool = False
    is_confirmed: bool = True
    is_published: bool = False


class SendQueue:
    """One node's queue. For one thread at a time.

    Args:
        limit_bytes: More than this is not staged: writers wait.
        only_wanted: Send only what the driver wants, as long as there is a driver.
        only_expected: Send only what the driver expects of this node, or somebody waits for, as
            long as there is a driver: of what two nodes have, one sends it.

    Attributes:
        is_alone: The driver has died: all is sent that nobody said to drop.
        making_bytes: What is written on this node and not reported yet.
    """

    def __init__(
        self, limit_bytes: int, only_wanted: bool = False, only_expected: bool = False
    ) -> None:
        self._limit_bytes = limit_bytes
        self._only_wanted = only_wanted
        self._only_expected = only_expected
        self._items: dict[str, Item] = {}
        self._sending: set[str] = set()
        self._failed: dict[str, str] = {}
        self._awaited: set[str] = set()
        self._again_s: dict[str, float] = {}
        self._orders, self._ranks = Orders(), dict[str, int]()
        self.is_alone = False
        self.making_bytes = 0

    def add(self, item: Item) -> None:
        """Take in a sealed attempt; a second time, nothing happens."""
        self._items.setdefault(item.attempt, item)

    def tell(self, orders: Orders) -> list[Item]:
        """What the driver says now; returns what is known from that to be published.

        Where another node has sent it, this one does not, also when the driver has died.
        """
        self._orders = _quick(orders)
        self._ranks = {a: rank for rank, a in enumerate(dict.fromkeys(orders.wanted))}
        stored = (i for i in self._items.values() if i.stored_as and not i.is_published)
        found = [i for i in (*self._unsent(), *stored) if i.attempt in self._orders.published]
        told = [replace(i, stored_as=i.stored_as or i.attempt, is_published=True) for i in found]
        self._items.update({item.attempt: item for item in told})
        return told

    def confirmed(self, attempt: str) -> None:
        """Its bytes are known now."""
        if attempt in self._items:
            self._items[attempt] = replace(self._items[attempt], is_confirmed=True)

    def wait_for(self, attempt: str) -> bool:
        """Somebody waits until it is stored; returns whether it is."""
        item = self._items.get(attempt)
        if item is not None:
            self._awaited.add(attempt)
        return item is not None and bool(item.stored_as)

    def next(self, paused: Collection[str] = ()) -> Item | None:
        """What is to be sent now, if anything; it counts as being sent from here on.

        Args:
            paused: What makes way for others just now.
        """
        todo = [i for i in self._in_turn() if i.is_confirmed and i.attempt not in paused]
        item = min(todo, key=self._turn, default=None)
        if item is not None:
            self._sending.add(item.attempt)
        return item

    def sent(self, attempt: str, stored_as: str) -> None:
        """It is sealed at the destination, under another id."""
        self._sending.discard(attempt)
        if attempt in self._items:
            self._items[attempt] = replace(self._items[attempt], stored_as=stored_as)

    def put_back(self, attempt: str, now_s: float | None = None) -> None:
        """It could not be sent now. With a moment of the epoch, it is as one that was sealed then.

        So what always fails has no turn before all others have had one.
        """
        self._sending.discard(attempt)
        if now_s is not None and attempt in self._items:
            self._again_s[attempt] = now_s

    def give_up(self, attempt: str, reason: str) -> None:
        """It can never be sent."""
        self._sending.discard(attempt)
        self._failed[attempt] = reason

    def removable(self, is_short: Callable[[Item], bool] = lambda item: False) -> list[Item]:
        """What this node need not keep any more.

        A trial's newest stays while there is room: if it restarts here, it need not be fetched.

        Args:
            is_short: Of an item: there is no room at all where it is.
        """
        newest = self._newest()
        return [i for i in self._items.values() if self._is_removable(i, newest, is_short)]

    def removed(self, attempt: str) -> None:
        """It is not there any more."""
        self._items.pop(attempt, None)
        self._sending.discard(attempt)
        self._failed.pop(attempt, None)
        self._awaited.discard(attempt)
        self._again_s.pop(attempt, None)

    def is_dropped(self, attempt: str) -> bool:
        """Whether nobody needs it any more."""
        return self._orders.is_closing or attempt in self._orders.dropped

    def items(self) -> list[Item]:
        """All that is here."""
        return list(self._items.values())

    def waiting(self) -> list[Item]:
        """What is to be sent, and is not being sent."""
        return list(self._unsent())

    def sending(self) -> list[str]:
        """What is being sent."""
        return sorted(self._sending)

    def left(self) -> list[Item]:
        """What is still to be sent, or is being sent."""
        given_up = {*self._failed, *self._orders.dropped}
        mine = self._mine(self._items.values())
        return [i for i in mine if not i.stored_as and i.attempt not in given_up]

    def others(self) -> list[Item]:
        """What is here for the case that another node is lost, and is not to be sent now."""
        mine = {item.attempt for item in self._mine(self._items.values())}
        known = mine.union(self._orders.published, self._orders.dropped)
        return [i for i in self._items.values() if i.attempt not in known]

    def is_stored(self, attempt: str) -> bool:
        """Whether it is at its destination."""
        item = self._items.get(attempt)
        return item is not None and bool(item.stored_as)

    def failed(self) -> dict[str, str]:
        """Attempt -> why it can never be sent."""
        return dict(self._failed)

    def news(self, orders: Orders, now_s: float) -> News:
        """What can be told of it; `orders` say what is expected."""
        items, left, others = self.items(), self.left(), self.others()
        return News(
            held=[item.attempt for item in items],
            stored={item.attempt: item.stored_as for item in items if item.stored_as},
            failed=self.failed(),
            missing=[attempt for attempt in orders.expected if attempt not in self._items],
            left_count=len(left),
            left_bytes=sum(item.size_bytes for item in left),
            left_s=max([0.0, *(now_s - item.sealed_s for item in left)]),
            sending=self.sending(),
            is_full=not self.has_room,
            replicas_count=len(others),
            replicas_bytes=sum(item.size_bytes for item in others),
        )

    @property
    def used_bytes(self) -> int:
        """What is staged on the disk and has to stay."""
        done = {*self._orders.published, *self._orders.dropped}
        left = [i for i in self._items.values() if i.attempt not in done and not i.in_memory]
        return sum(i.size_bytes for i in left)

    @property
    def has_room(self) -> bool:
        """Whether another checkpoint may be staged."""
        return self.used_bytes + self.making_bytes < self._limit_bytes

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
            return (item for item in self._unsent() if item.attempt in self._ranks)
        waits = {*orders.held_back} - self._ranks.keys()
        return (item for item in self._mine(self._unsent()) if item.attempt not in waits)

    def _mine(self, items: Iterable[Item]) -> Iterable[Item]:
        """What this node has to send, of two that have it."""
        if self.is_alone or not self._only_expected:
            return items
        mine = {*self._orders.expected, *self._awaited}
        return (item for item in items if item.attempt in mine)

    def _turn(self, item: Item) -> tuple[int, float, str]:
        rank = self._ranks.get(item.attempt, len(self._ranks))
        return rank, self._again_s.get(item.attempt, item.sealed_s), item.attempt

    def _newest(self) -> set[str]:
        """The newest checkpoint of each trial that the driver knows.

        A trial that is paused may have staged one that it never reports: others go on from the
        one before.
        """
        newest: dict[str, str] = {}
        known = {*self._orders.published, *self._orders.expected}.difference(self._orders.dropped)
        for item in self._items.values():
            if item.attempt in known:
                trial = layout.parent(item.checkpoint)
                newest[trial] = max(newest.get(trial, ""), item.checkpoint, key=layout.by_age)
        return set(newest.values())

    def _is_removable(
        self, item: Item, newest: Collection[str], is_short: Callable[[Item], bool]
    ) -> bool:
        if item.attempt in self._sending:
            return False
        if self._orders.is_closing or item.attempt in self._orders.dropped:
            return True
        if item.attempt not in self._orders.published:
            return False
        if item.checkpoint not in newest or is_short(item):
            return True
        on_disk = [i.size_bytes for i in self._items.values() if not i.in_memory]
        return not item.in_memory and sum(on_disk) >= self._limit_bytes


def _quick(orders: Orders) -> Orders:
    """The same, as sets: whether an attempt is in one is asked for each of thousands."""
    return replace(orders, published=frozenset(orders.published), dropped=frozenset(orders.dropped))
