"""Only each trial's newest travels, once a period, and what is written names only what is there."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.periods import NODE, PERIOD_S, TRIALS, Driver
from tune_sync import layout
from tune_sync.layout import by_age
from tune_sync.sending.orders import News


def run(driver: Driver, steps: int, names: tuple[str, ...] = ("t",), every_s: float = 1.0) -> None:
    """Report a step a second, and send at once whatever may travel."""
    for _ in range(steps):
        for name in names:
            driver.report(name)
        driver.now_s += every_s
        for checkpoint in driver.plan():
            driver.send(checkpoint)
        driver.refresh()


def both_wait(driver: Driver) -> None:
    """Both trials have something to send, and their turns have come."""
    for name in TRIALS:
        driver.report(name)
    assert driver.plan() == []
    driver.now_s = 2 * PERIOD_S


def test_one_checkpoint_a_period_travels_and_the_last() -> None:
    driver = Driver()
    run(driver, 45)
    assert len(driver.sent) in (4, 5)
    numbers = [layout.checkpoint_number(c) or 0 for c in driver.sent]
    assert {b - a for a, b in pairwise(numbers)} == {10}
    driver.finish()
    assert driver.sent[-1] == "t/checkpoint_000044"
    assert driver.trials["t"].kept == driver.sent, "Ray has forgotten the others"
    assert driver.at_destination["t"] == (frozenset(driver.sent), driver.sent[-1])


def test_what_is_kept_at_the_destination_is_what_is_to_be_kept() -> None:
    driver = Driver(keep=1)
    for _ in range(45):
        run(driver, 1)
        driver.offer(driver.make())
        driver.take()
        driver.delete_some()
        there = driver.published - driver.gone
        assert len(there) <= 2
        if driver.published:
            assert driver.at_destination["t"][1] in there, "it is not from scratch"
    driver.finish()
    assert driver.published - driver.gone == {"t/checkpoint_000044"}


def load(driver: Driver) -> str:
    """A checkpoint that travels at once."""
    checkpoint = driver.report("t")
    driver.backlog.hurry(checkpoint)
    driver.send(*driver.plan())
    return checkpoint


def test_what_a_version_names_that_is_being_written_is_not_deleted() -> None:
    driver = Driver(keep=1)
    first = load(driver)
    driver.refresh()
    driver.offer(driver.make())
    driver.take()
    newer = load(driver)
    driver.offer(driver.make())
    driver.begin_write()
    driver.refresh()
    driver.end_write()
    assert driver.at_destination["t"][1] == first
    driver.delete_some()
    driver.offer(driver.make())
    driver.take()
    driver.delete_some()
    assert driver.published - driver.gone == {newer}


def test_turns_are_not_all_at_once_and_no_more_travel_than_are_let_in() -> None:
    driver = Driver(limit_count=1)
    both_wait(driver)
    assert len(driver.plan()) == 1
    (first,) = driver.plan()
    driver.report(layout.parent(first))
    assert driver.plan() == [first], "it is on its way"
    driver.send(first)
    (second,) = driver.plan()
    assert layout.parent(second) != layout.parent(first)


def test_what_waits_at_the_gate_is_replaced_by_what_is_newer() -> None:
    driver = Driver(limit_count=1)
    both_wait(driver)
    (first,) = driver.plan()
    other = next(name for name in TRIALS if name != layout.parent(first))
    newer = driver.report(other)
    driver.send(first)
    assert driver.plan() == [newer]


def test_a_state_that_says_that_a_trial_has_ended_waits_for_its_last() -> None:
    driver = Driver()
    run(driver, 15)
    last = driver.report("t")
    driver.trials["t"].has_ended = True  # Ray told nobody
    driver.offer(driver.make())
    driver.take()
    assert not driver.at_destination
    assert driver.plan() == [last]
    driver.send(last)
    driver.take()
    assert not driver.at_destination, "it does not name it yet"
    driver.refresh()
    driver.take()
    assert driver.at_destination["t"][1] == last


def test_writers_that_wait_for_room_do_not_wait_for_their_turn() -> None:
    driver = Driver()
    checkpoint = driver.report("t")
    assert driver.plan() == []
    driver.backlog.hear(NODE, News(held=list(driver.on_node), is_full=True))
    assert driver.plan() == [checkpoint]


def test_what_someone_is_about_to_load_travels_now_and_is_not_replaced() -> None:
    driver = Driver()
    checkpoint = driver.report("t")
    driver.backlog.hurry(checkpoint)
    driver.report("t")
    assert driver.plan() == [checkpoint]


def test_a_node_that_cannot_send_makes_way_for_others() -> None:
    driver = Driver(limit_count=1)
    both_wait(driver)
    (first,) = driver.plan()
    driver.backlog.hear(NODE, News(held=list(driver.on_node), error="does not answer"))
    (second,) = driver.plan()
    assert second != first
    driver.send(second)
    assert driver.plan() == [first]


def test_what_ray_never_registers_keeps_nothing_from_ending() -> None:
    driver = Driver()
    driver.report("t")
    for late in ("t/checkpoint_000007", "other/checkpoint_000000"):
        driver.accept(late)
    driver.finish()
    there = {"t/checkpoint_000000", "t/checkpoint_000007", "other/checkpoint_000000"}
    assert driver.published == there
    assert driver.at_destination["t"][1] == "t/checkpoint_000000"


def test_what_arrives_after_something_newer_and_is_deleted_goes() -> None:
    driver = Driver(keep=1)
    older = driver.report("t")
    driver.backlog.hurry(older)
    assert driver.plan() == [older]
    newer = driver.report("t")
    driver.backlog.hurry(newer)
    assert newer in driver.plan()
    for checkpoint in (newer, older):
        driver.send(checkpoint)
        driver.refresh()
    driver.offer(driver.make())
    driver.take()
    driver.delete_some()
    assert driver.published - driver.gone == {newer}


class Periods(RuleBasedStateMachine):
    """Random trials, nodes and writers; each assertion is in `Driver`."""

    @initialize(keep=st.sampled_from([None, 1, 2]), limit=st.sampled_from([None, 1]))
    def begin(self, keep: int | None, limit: int | None) -> None:
        self.driver = Driver(keep, limit)
        self.made: list[dict[str, str]] = []
        self.wanted: list[str] = []

    @rule(name=st.sampled_from(TRIALS))
    def report(self, name: str) -> None:
        if not self.driver.trials[name].has_ended:
            self.driver.report(name)

    @rule(seconds=st.floats(0.0, 2 * PERIOD_S))
    def wait(self, seconds: float) -> None:
        self.driver.now_s += seconds

    @rule()
    def plan(self) -> None:
        before = set(self.wanted)
        self.wanted = self.driver.plan()
        assert not set(self.wanted) & self.driver.gone
        for checkpoint in set(self.wanted) - before:
            name = layout.parent(checkpoint)
            if not self.driver.trials[name].has_ended:
                # Its turn came once: nothing older of the trial goes after it.
                older = [c for c in self.driver.sent if layout.parent(c) == name]
                assert all(by_age(c) < by_age(checkpoint) for c in older)

    @rule()
    def send(self) -> None:
        left = [c for c in self.wanted if c not in self.driver.gone | set(self.driver.sent)]
        if left:
            self.driver.send(left[0])

    @rule()
    def refresh(self) -> None:
        self.driver.refresh()

    @rule(name=st.sampled_from(TRIALS))
    def lose(self, name: str) -> None:
        for checkpoint in self.driver.backlog.on_their_way(name)[-1:]:
            trial, backlog = self.driver.trials[name], self.driver.backlog
            backlog.lose(checkpoint, "its node is gone")
            self.driver.gone.add(checkpoint)
            backlog.forgot(set(backlog.gone))
            trial.kept = [c for c in trial.kept if c != checkpoint]
            if trial.latest == checkpoint:
                trial.latest = backlog.newest_published(name)
                if trial.latest and trial.latest not in trial.kept:
                    backlog.spare(trial.latest)
                    trial.kept.append(trial.latest)

    @rule(name=st.sampled_from(TRIALS), tells=st.booleans())
    def end(self, name: str, tells: bool) -> None:
        if not self.driver.trials[name].has_ended:
            self.driver.trials[name].has_ended = True
            if tells:
                self.driver.end(name)

    @precondition(lambda self: not self.made)
    @rule()
    def make(self) -> None:
        self.made.append(self.driver.make())

    @precondition(lambda self: self.made)
    @rule()
    def offer(self) -> None:
        self.driver.offer(self.made.pop())

    @rule()
    def begin_write(self) -> None:
        self.driver.begin_write()

    @rule()
    def end_write(self) -> None:
        self.driver.end_write()

    @rule()
    def delete_some(self) -> None:
        self.driver.delete_some()

    @invariant()
    def what_is_written_is_there(self) -> None:
        driver = getattr(self, "driver", None)
        if driver is not None:
            for names, latest in driver.at_destination.values():
                assert names | {latest} - {""} <= driver.published - driver.gone

    def teardown(self) -> None:
        driver = getattr(self, "driver", None)
        if driver is None:
            return
        if self.made:
            driver.offer(self.made.pop())
        driver.finish()
        named = {c for names, _ in driver.at_destination.values() for c in names}
        assert driver.published - driver.gone == named
        for trial in driver.trials.values():
            assert set(trial.kept) <= driver.published


TestPeriods = Periods.TestCase
TestPeriods.settings = settings(
    max_examples=300, stateful_step_count=40, deadline=None, derandomize=True
)
