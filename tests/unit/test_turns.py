"""Whose turn it is, how many travel at a time, and how fast."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tune_sync.sending.bandwidth import Bandwidth
from tune_sync.sending.gate import SENDERS_COUNT, Gate
from tune_sync.sending.turns import Turns

PERIOD_S = 300.0


def test_turns_of_many_trials_are_spread_over_the_period() -> None:
    turns = Turns(PERIOD_S, 0.0)
    per_part = Counter(
        int(turns.phase_s(f"train_fn_{n:05}") // (PERIOD_S / 20)) for n in range(1000)
    )
    assert len(per_part) == 20
    assert max(per_part.values()) < 2 * 1000 / 20


def test_a_trial_has_the_same_moment_in_every_run() -> None:
    assert Turns(PERIOD_S, 0.0).phase_s("t") == Turns(PERIOD_S, 17.0).phase_s("t")


@given(st.text(min_size=1), st.floats(0.0, 1e6), st.floats(0.0, 1e4))
def test_a_trial_has_one_turn_in_every_period(trial: str, start_s: float, after_s: float) -> None:
    turns = Turns(PERIOD_S, start_s)
    now_s = start_s + after_s
    assert not turns.is_due(trial, now_s)
    turns.wait(trial, now_s)
    assert not turns.is_due(trial, now_s)
    assert turns.is_due(trial, now_s + PERIOD_S + 0.001)
    turns.took(trial)
    assert not turns.is_due(trial, now_s + 2 * PERIOD_S)


def test_a_turn_with_nothing_to_send_is_not_made_up_for() -> None:
    turns = Turns(PERIOD_S, 0.0)
    moment_s = turns.phase_s("t")
    turns.wait("t", moment_s + 1.0)
    assert not turns.is_due("t", moment_s + PERIOD_S - 1.0)
    assert turns.is_due("t", moment_s + PERIOD_S + 0.001)


def test_no_more_go_in_than_there_is_room_for() -> None:
    gate = Gate(3)
    assert gate.enter("a", {"a0": "n1", "a1": "n2"})
    assert not gate.enter("b", {"b0": "n1", "b1": "n2"})
    assert gate.enter("c", {"c0": "n3"})
    assert not gate.enter("d", {"d0": "n4"})
    gate.leave("a")
    assert not gate.enter("d", {"d0": "n4"}, others_count=2)
    assert gate.enter("d", {"d0": "n4"})
    assert gate.inside() == ["c", "d"]


def test_one_with_more_parts_than_the_limit_goes_alone() -> None:
    gate, parts = Gate(1), {"a0": "n1", "a1": "n2", "a2": "n3"}
    assert gate.enter("b", {"b0": "n1"})
    assert not gate.enter("a", parts)
    gate.leave("b")
    assert gate.enter("a", parts)


def test_a_node_takes_no_more_room_than_it_uses() -> None:
    gate = Gate(10)
    assert [gate.enter(f"c{n}", {f"a{n}": "n1"}) for n in range(3)] == [True] * SENDERS_COUNT + [
        False
    ]
    assert gate.enter("other", {"other": "n2"})


@given(st.lists(st.tuples(st.integers(1, 1 << 20), st.floats(0.0, 2.0)), max_size=50))
def test_no_more_bytes_than_the_limit_are_sent_but_for_the_last_piece(
    pieces: list[tuple[int, float]],
) -> None:
    bandwidth, now_s, sent_bytes, rate = Bandwidth(1 << 20), 0.0, 0, 1 << 20
    for size_bytes, pause_s in pieces:
        now_s += bandwidth.take(size_bytes, now_s)
        assert sent_bytes <= rate * now_s + 1
        sent_bytes += size_bytes
        now_s += pause_s


def test_without_a_limit_nothing_waits() -> None:
    assert Bandwidth().take(1 << 40, 0.0) == 0.0
