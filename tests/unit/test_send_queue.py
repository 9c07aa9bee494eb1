"""What a node sends next, and what it keeps."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tune_sync.sending.orders import Orders
from tune_sync.sending.queue import Item, SendQueue


def item(number: int, trial: str = "t", size_bytes: int = 1) -> Item:
    return Item(f"{trial}/checkpoint_{number:06d}", f"{trial}{number}", float(number), size_bytes)


def queue(*numbers: int, limit_bytes: int = 100) -> SendQueue:
    made = SendQueue(limit_bytes)
    for number in numbers:
        made.add(item(number))
    return made


def send(made: SendQueue) -> str:
    found = made.next()
    assert found is not None
    made.sent(found.attempt, "there")
    return found.attempt


def test_the_oldest_goes_first_unless_another_is_wanted() -> None:
    made = queue(3, 1, 2)
    assert send(made) == "t1"
    made.tell(Orders(wanted=["t3"]))
    assert send(made) == "t3"
    assert send(made) == "t2"
    assert made.next() is None
    assert made.is_idle


def test_what_is_dropped_is_not_sent_and_goes() -> None:
    made = queue(1, 2)
    made.tell(Orders(dropped=["t1"]))
    assert send(made) == "t2"
    assert [i.attempt for i in made.removable()] == ["t1"]
    assert made.is_idle


def test_what_is_held_back_stays_until_it_is_wanted_or_nobody_is_there_to_want_it() -> None:
    made = queue(1)
    made.tell(Orders(held_back=["t1"]))
    assert made.next() is None
    assert made.removable() == []
    made.tell(Orders(held_back=["t1"], wanted=["t1"]))
    assert made.next() is not None
    made.put_back("t1")
    made.tell(Orders(held_back=["t1"]))
    made.is_alone = True
    assert made.next() is not None


def test_the_newest_of_a_trial_stays_after_it_is_published_while_there_is_room() -> None:
    made = queue(1, 2, limit_bytes=3)
    send(made)
    send(made)
    assert made.removable() == []
    made.tell(Orders(published=["t1", "t2"]))
    assert [i.attempt for i in made.removable()] == ["t1"]
    made.add(item(1, "u", size_bytes=5))
    assert {i.attempt for i in made.removable()} == {"t1", "t2"}


def test_what_was_never_reported_is_not_the_newest_of_its_trial() -> None:
    made = queue(1, 2)
    made.tell(Orders(published=["t1"]))
    assert made.removable() == []
    made.tell(Orders(published=["t1"], expected=["t2"]))
    assert [i.attempt for i in made.removable()] == ["t1"]


def test_writers_wait_while_what_is_not_published_takes_the_room() -> None:
    made = queue(1, 2, limit_bytes=2)
    assert not made.has_room
    made.tell(Orders(dropped=["t1"]))
    assert made.has_room


def test_what_cannot_be_sent_now_is_sent_later_and_what_never_can_is_told() -> None:
    made = queue(1)
    assert made.next() is not None
    assert made.next() is None
    made.put_back("t1")
    assert made.next() is not None
    made.give_up("t1", "damaged")
    assert made.next() is None
    assert made.failed() == {"t1": "damaged"}


def test_where_the_driver_plans_nothing_else_is_sent_as_long_as_it_is_there() -> None:
    made = SendQueue(100, only_wanted=True)
    for number in (1, 2, 3):
        made.add(item(number))
    assert made.next() is None
    made.tell(Orders(wanted=["t3"], dropped=["t1"]))
    assert send(made) == "t3"
    assert made.next() is None
    assert not made.is_idle
    made.is_alone = True
    assert send(made) == "t2"
    assert made.next() is None
    assert made.is_idle


def test_of_what_two_nodes_have_the_one_sends_it_of_which_it_is_expected() -> None:
    made = SendQueue(100, only_expected=True)
    for number in (1, 2, 3):
        made.add(item(number))
    assert made.next() is None
    assert (made.left(), len(made.others())) == ([], 3)
    made.tell(Orders(expected=["t2"]))
    assert send(made) == "t2"
    assert made.next() is None
    assert made.wait_for("t3") is False
    assert send(made) == "t3"
    assert made.wait_for("t3") is True
    assert [i.attempt for i in made.others()] == ["t1"]
    made.is_alone = True
    assert send(made) == "t1"


def test_what_another_node_has_sent_is_not_sent_once_more_without_a_driver() -> None:
    made = SendQueue(100, only_expected=True)
    for number in (1, 2):
        made.add(item(number))
    assert [i.attempt for i in made.tell(Orders(published=["t2"]))] == ["t2"]
    assert made.tell(Orders(published=["t2"])) == []
    made.is_alone = True
    assert [i.attempt for i in made.left()] == ["t1"]
    assert send(made) == "t1"
    assert (made.next(), made.is_idle) == (None, True)


class Attempt(str):
    """An id that counts how often one is compared with another."""

    __hash__ = str.__hash__
    compared_count = 0

    def __eq__(self, other: object) -> bool:
        Attempt.compared_count += 1
        return str.__eq__(self, other)


def test_what_is_told_of_thousands_is_not_searched_for_each_of_them() -> None:
    ids = [Attempt(number) for number in range(200)]
    made = SendQueue(1)
    for number, attempt in enumerate(ids):
        made.add(Item(f"t/checkpoint_{number:06d}", attempt, float(number), 1))
    told = [Attempt(attempt) for attempt in ids]  # they come from another process
    for orders in (Orders(wanted=told), Orders(dropped=told), Orders(published=told)):
        Attempt.compared_count = 0
        made.tell(orders)
        made.news(orders, 0.0)
        made.removable()
        found = made.next()
        made.put_back(found.attempt if found else "")
        assert 0 < Attempt.compared_count < 20 * len(ids)


ATTEMPTS = st.integers(0, 7)


class Node(RuleBasedStateMachine):
    """A node with random orders: nothing is lost, sent twice at a time, or sent for nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.only_wanted = self.only_expected = False
        self.awaited: set[str] = set()
        self.queue = SendQueue(4)
        self.orders = Orders()
        self.sending: set[str] = set()
        self.stored: set[str] = set()
        self.here: set[str] = set()
        self.given_up: set[str] = set()

    @initialize(only_wanted=st.booleans(), only_expected=st.booleans())
    def begin(self, only_wanted: bool, only_expected: bool) -> None:
        self.only_wanted, self.only_expected = only_wanted, only_expected
        self.queue = SendQueue(4, only_wanted, only_expected)

    @rule(number=ATTEMPTS, trial=st.sampled_from("tu"))
    def wait_for(self, number: int, trial: str) -> None:
        attempt = item(number, trial).attempt
        assert self.queue.wait_for(attempt) == (attempt in self.stored & self.here)
        self.awaited |= {attempt} & self.here

    @rule(is_alone=st.booleans())
    def driver_dies(self, is_alone: bool) -> None:
        self.queue.is_alone = is_alone

    @rule(number=ATTEMPTS, trial=st.sampled_from("tu"))
    def add(self, number: int, trial: str) -> None:
        new = item(number, trial)
        if new.attempt not in self.stored:
            self.queue.add(new)
            self.here.add(new.attempt)

    @rule(data=st.data())
    def tell(self, data: st.DataObject) -> None:
        some = st.sets(st.sampled_from(sorted(self.here) or ["none"]))
        published = data.draw(some) & self.stored
        self.orders = Orders(
            expected=sorted(data.draw(some)), wanted=sorted(data.draw(some)), published=published,
            dropped=data.draw(some) - published, held_back=data.draw(some),
            is_closing=data.draw(st.integers(0, 9)) == 0,
        )  # fmt: skip
        self.queue.tell(self.orders)

    def may_go(self) -> set[str]:
        wanted = set(self.orders.wanted)
        if self.orders.is_closing:
            return set()
        if self.queue.is_alone:
            return self.here
        if self.only_wanted:
            return wanted
        mine = self.here & (set(self.orders.expected) | self.awaited)
        return (mine if self.only_expected else self.here) - ({*self.orders.held_back} - wanted)

    @rule(data=st.data())
    def next(self, data: st.DataObject) -> None:
        paused = data.draw(st.sets(st.sampled_from(sorted(self.here) or ["none"])))
        done = self.sending | self.stored | {*self.orders.dropped} | self.given_up | paused
        todo = self.here & self.may_go() - done
        found = self.queue.next(paused)
        assert (found is None) == (not todo)
        if found is None:
            return
        assert found.attempt in todo
        self.sending.add(found.attempt)
        if todo & {*self.orders.wanted}:
            assert found.attempt in self.orders.wanted

    @rule()
    def give_up(self) -> None:
        for attempt in sorted(self.sending)[:1]:
            self.sending.discard(attempt)
            self.queue.give_up(attempt, "damaged")
            self.given_up.add(attempt)

    @rule(works=st.booleans(), moment_s=st.one_of(st.none(), st.floats(0.0, 9.0)))
    def end_one(self, works: bool, moment_s: float | None) -> None:
        for attempt in sorted(self.sending)[:1]:
            self.sending.discard(attempt)
            if works:
                self.queue.sent(attempt, "there")
                self.stored.add(attempt)
            else:
                self.queue.put_back(attempt, moment_s)

    @rule()
    def remove(self) -> None:
        for found in self.queue.removable():
            is_closing = self.orders.is_closing
            allowed = self.here if is_closing else {*self.orders.dropped, *self.orders.published}
            assert found.attempt in allowed - self.sending
            self.here.discard(found.attempt)
            self.awaited.discard(found.attempt)
            self.given_up.discard(found.attempt)
            self.queue.removed(found.attempt)

    @invariant()
    def all_agree(self) -> None:
        items = self.queue.items()
        assert {item.attempt for item in items} == self.here
        assert {item.attempt for item in items if item.stored_as} == self.stored & self.here
        assert {*self.queue.sending()} == self.sending
        assert {*self.queue.failed()} == self.given_up
        left = self.here - self.stored - self.given_up - {*self.orders.dropped}
        assert self.queue.is_idle == (not self.sending and not left)


TestNode = Node.TestCase
TestNode.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
