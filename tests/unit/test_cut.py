"""State is written after what it names, comes to an end, and deletes follow it."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tune_sync.sending.cut import Cut, HeldVersion

STATE, OTHER = "experiment_state.json", "search.pkl"


def do(held: HeldVersion) -> None:
    for write in held.files.values():
        write()


def test_a_version_that_needs_nothing_is_written_at_once() -> None:
    cut, written = Cut(), list[str]()
    cut.offer(STATE, lambda: written.append("one"), is_state=True)
    held = cut.take()
    assert held is not None
    do(held)
    cut.wrote(held)
    assert written == ["one"]
    assert cut.is_settled


def test_a_version_waits_for_what_it_names_and_the_newest_replaces_itself() -> None:
    cut, written = Cut(), list[int]()
    for number in range(5):
        cut.accepted(f"t/checkpoint_00000{number}")
        cut.offer(STATE, lambda number=number: written.append(number), is_state=True)  # type: ignore[misc]
        assert cut.take() is None
    assert cut.pinned() == {"t/checkpoint_000000"}
    cut.stored("t/checkpoint_000000")
    held = cut.take()
    assert held is not None
    do(held)
    cut.wrote(held)
    assert written == [0]
    assert cut.pinned() == {f"t/checkpoint_00000{n}" for n in range(1, 5)}


def test_what_is_deleted_before_its_turn_is_dropped_once_no_version_can_name_it() -> None:
    cut = Cut()
    cut.accepted("a")
    cut.accepted("b")
    cut.doom("a")
    assert cut.droppable() == []
    cut.offer(STATE, lambda: None, is_state=True)  # made before the delete
    assert cut.pinned() == {"a", "b"}
    cut.stored("b")
    cut.offer(STATE, lambda: None, is_state=True)
    cut.offer(STATE, lambda: None, is_state=True)
    assert cut.droppable() == []
    assert cut.pinned() == {"a"}
    cut.stored("a")
    for _ in range(2):
        held = cut.take()
        if held:
            cut.wrote(held)
    assert cut.deletable() == ["a"]


def test_a_delete_waits_for_versions_that_were_offered_after_it() -> None:
    cut = Cut()
    cut.accepted("later")
    cut.offer(STATE, lambda: None, is_state=True)
    assert cut.pinned() == {"later"}  # one waits now, so there are two
    cut.offer(STATE, lambda: None, is_state=True)
    cut.doom("old")
    cut.stored("later")
    for _ in range(2):
        held = cut.take()
        assert held is not None
        cut.wrote(held)
    assert cut.deletable() == []
    for _ in range(2):
        cut.offer(STATE, lambda: None, is_state=True)
        held = cut.take()
        assert held is not None
        cut.wrote(held)
    assert cut.deletable() == ["old"]


def test_at_an_end_without_a_last_version_what_the_written_one_may_name_stays() -> None:
    for is_last in (True, False):
        cut = Cut()
        cut.doom("old")
        cut.offer(STATE, lambda: None, is_state=True)  # made before that
        held = cut.take()
        assert held is not None
        cut.wrote(held)
        cut.ended(is_last=is_last)
        assert cut.is_settled
        assert cut.deletable() == (["old"] if is_last else [])


def test_at_an_end_without_a_last_version_what_it_may_name_is_waited_for() -> None:
    cut = Cut()
    cut.accepted("old")
    cut.accepted("other")
    cut.offer(STATE, lambda: None, is_state=True)
    assert cut.take() is None
    cut.doom("old")
    cut.offer(STATE, lambda: None, is_state=True)  # made before that
    cut.ended(is_last=False)
    cut.stored("other")
    assert cut.take() is None
    assert cut.droppable() == []
    cut.stored("old")
    for _ in range(2):
        held = cut.take()
        assert held is not None
        cut.wrote(held)
    assert cut.deletable() == []


def test_what_a_version_that_comes_after_such_an_end_may_name_travels() -> None:
    cut = Cut()
    cut.accepted("old")
    cut.doom("old")
    cut.ended(is_last=False)
    assert cut.droppable() == []
    assert cut.held_back() == frozenset(), "nothing follows that it could wait for"
    cut.offer(STATE, lambda: None, is_state=True)  # made before the delete
    assert cut.take() is None
    cut.stored("old")
    assert cut.take() is not None


def test_no_version_that_may_name_what_is_lost_is_written() -> None:
    cut = Cut()
    cut.accepted("a")
    cut.offer(STATE, lambda: None, is_state=True)
    cut.lost("a")
    assert cut.take() is None
    assert cut.is_stuck
    cut.doom("a")
    cut.offer(STATE, lambda: None, is_state=True)
    assert cut.take() is None
    cut.offer(STATE, lambda: None, is_state=True)
    assert cut.take() is not None


def test_what_is_offered_while_a_version_is_written_belongs_to_the_next() -> None:
    cut, written = Cut(), list[str]()
    cut.offer(STATE, lambda: written.append("state"), is_state=True)
    held = cut.take()
    assert held is not None
    cut.offer(OTHER, lambda: written.append("search"), is_state=False)
    do(held)
    cut.wrote(held)
    held = cut.take()
    assert held is not None
    do(held)
    assert written == ["state", "search"]


def test_what_no_version_names_from_now_on_goes_after_the_next_that_is_taken() -> None:
    cut = Cut()
    cut.offer(STATE, lambda: None, is_state=True)
    under_way = cut.take()
    assert under_way is not None
    cut.unnamed("old")  # the one that is being written may still name it
    cut.wrote(under_way)
    assert cut.deletable() == []
    cut.offer(STATE, lambda: None, is_state=True)
    held = cut.take()
    assert held is not None
    assert cut.deletable() == []
    cut.wrote(held)
    assert cut.deletable() == ["old"]
    cut.spare("old")
    assert cut.deletable() == []


NAMES = st.integers(0, 2).map(lambda n: f"checkpoint_{n}")


class Driver(RuleBasedStateMachine):
    """A driver whose versions are made at one moment and offered at a later one."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = Cut()
        self.kept: set[str] = set()  # in the driver's record
        self.used: set[str] = set()
        self.stored: set[str] = set()
        self.lost: set[str] = set()
        self.gone: set[str] = set()  # never stored, or deleted
        self.required: set[str] = set()
        self.made: list[frozenset[str]] = []
        self.at_destination: frozenset[str] = frozenset()
        self.newest: frozenset[str] = frozenset()
        self.ended = False
        self.is_cut_off = False  # what was made before may still be offered

    @precondition(lambda self: not self.ended)
    @rule(name=NAMES)
    def accept(self, name: str) -> None:
        if name not in self.used:
            self.used.add(name)
            self.kept.add(name)
            self.cut.accepted(name)

    @precondition(lambda self: not self.ended)
    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if name in self.kept - self.lost:
            self.kept.discard(name)
            self.cut.doom(name)

    @rule(name=NAMES)
    def store(self, name: str) -> None:
        if name in self.cut.unstored and name not in self.cut.droppable():
            self.stored.add(name)
            self.cut.stored(name)

    @rule(name=NAMES)
    def lose(self, name: str) -> None:
        if name in self.cut.unstored and not self.ended:
            self.lost.add(name)
            self.cut.lost(name)

    @precondition(lambda self: not self.ended)
    @rule()
    def forget_lost(self) -> None:
        for name in self.kept & self.lost:
            self.kept.discard(name)
            self.cut.doom(name)

    @precondition(lambda self: not self.ended and not self.made)
    @rule()
    def make(self) -> None:
        self.made.append(frozenset(self.kept))

    @precondition(lambda self: self.made)
    @rule()
    def offer(self) -> None:
        names = self.made.pop(0)
        self.newest = names
        self.cut.offer(STATE, lambda: self.write(names), is_state=True)

    @precondition(lambda self: not self.ended)
    @rule()
    def offer_other(self) -> None:
        self.cut.offer(OTHER, lambda: None, is_state=False)

    def write(self, names: frozenset[str]) -> None:
        assert names <= self.stored - self.gone
        self.at_destination = names

    @rule(fails=st.booleans())
    def take(self, fails: bool) -> None:
        held = self.cut.take()
        if held is None:
            return
        assert not self.required & self.cut.unstored
        self.required.clear()
        if fails:
            self.cut.failed(held)
            return
        do(held)
        self.cut.wrote(held)

    @rule(name=NAMES)
    def require_more(self, name: str) -> None:
        held = self.cut.take() if name in self.cut.unstored else None
        if held is not None:
            self.cut.require(held, [name])
            self.required.add(name)
            assert name in self.cut.pinned()

    @rule()
    def drop(self) -> None:
        for name in self.cut.droppable():
            assert name not in self.kept
            self.gone.add(name)
            self.cut.dropped(name)

    @rule()
    def apply_deletes(self) -> None:
        for name in self.cut.deletable():
            assert name not in self.at_destination
            self.gone.add(name)
            self.cut.deleted(name)

    @precondition(lambda self: not self.ended and not self.made)
    @rule()
    def end(self) -> None:
        self.forget_lost()
        self.make()
        self.offer()
        self.cut.ended()
        self.ended = True

    @precondition(lambda self: not self.ended)
    @rule()
    def end_by_an_exception(self) -> None:
        self.cut.ended(is_last=False)
        self.ended = self.is_cut_off = True

    @invariant()
    def what_is_pinned_is_not_dropped(self) -> None:
        assert not self.cut.pinned() & set(self.cut.droppable())
        assert not self.cut.pinned() & self.cut.held_back()

    def teardown(self) -> None:
        if self.made:
            self.offer()
        if not self.ended:
            self.end()
        for _ in range(4):
            self.drop()
            for name in sorted(self.cut.unstored):
                self.store(name)
            self.take(fails=False)
        self.apply_deletes()
        if self.is_cut_off and self.lost and self.cut.is_stuck:
            return  # what it names is lost, and nothing follows
        assert self.cut.is_settled
        assert self.at_destination == self.newest


TestDriver = Driver.TestCase
TestDriver.settings = settings(
    max_examples=300, stateful_step_count=30, deadline=None, derandomize=True
)
