"""How a run's driver, and a node, tell how far they are."""

from __future__ import annotations

import pytest

from tune_sync.manifest import Manifest
from tune_sync.sending.backlog import Backlog
from tune_sync.sending.gate import Gate
from tune_sync.sending.orders import News, Orders
from tune_sync.sending.planned import PlannedBacklog
from tune_sync.sending.queue import Item, SendQueue
from tune_sync.sending.words import checkpoints

FIRST, SECOND = "t/checkpoint_000000", "t/checkpoint_000001"


def test_the_line_tells_count_size_age_and_what_is_stored_lost_or_wrong() -> None:
    backlog = Backlog()
    assert not backlog.is_worth_telling
    backlog.accept(FIRST, False, ["a@n1"], None)
    backlog.accept(SECOND, False, ["b@n2"], None)
    backlog.accept_placed(Manifest("t/checkpoint_000002", "", 0.0, (), ()))
    backlog.published("t/checkpoint_000002")
    backlog.hear("n1", News(held=["a"], left_count=1, left_bytes=3_000_000, left_s=12.3))
    backlog.hear("n2", News(held=["b"], left_count=1, left_bytes=4_000_000, left_s=4.0))
    assert backlog.is_worth_telling
    assert backlog.progress() == (
        "2 checkpoints (7 MB) are on their way, the oldest for 12 s; stored: 1"
    )
    backlog.lose_node("n2", "node n2 is gone")
    backlog.hear("n1", News(held=["a"], left_bytes=3_000_000, left_s=13.0, error="no route"))
    assert backlog.progress() == (
        "1 checkpoint (3 MB) is on its way, the oldest for 13 s; stored: 1, failed: 1; no route"
    )
    assert backlog.lost == {SECOND: "node n2 is gone"}


@pytest.mark.parametrize(
    ("size_bytes", "said"),
    [(1, "1 kB"), (12_345, "13 kB"), (999_000, "999 kB"), (999_001, "1 MB"), (7_400_000, "7 MB")],
)
def test_little_is_told_in_kilobytes(size_bytes: int, said: str) -> None:
    assert checkpoints(1, size_bytes) == f"1 checkpoint ({said})"
    assert checkpoints(2, size_bytes) == f"2 checkpoints ({said})"


def test_the_line_tells_how_much_of_it_two_nodes_have() -> None:
    backlog = Backlog()
    backlog.accept(FIRST, False, ["a@n1@n2", "b@n2@n1"], None)
    backlog.accept(SECOND, False, ["c@n1", "d@n2@n1"], None)  # no room on n2 for the one
    on_their_way = "2 checkpoints (0 kB) are on their way"
    assert backlog.progress() == f"{on_their_way}, replicated: 1; stored: 0"
    backlog.hear("n1", News(held=["a", "c"], stored={"c": "there"}))
    assert backlog.progress() == f"{on_their_way}, replicated: 2; stored: 0"
    backlog.lose_node("n2", "node n2 is gone")
    assert backlog.progress() == f"{on_their_way}; stored: 0"


def test_what_failed_or_was_dropped_is_not_left_to_be_sent() -> None:
    queue = SendQueue(100)
    for number in range(4):
        queue.add(Item(f"t/checkpoint_00000{number}", f"a{number}", float(number), 1))
    assert queue.next() is not None
    assert [item.attempt for item in queue.left()] == ["a0", "a1", "a2", "a3"]
    queue.sent("a0", "there")
    queue.give_up("a1", "damaged")
    queue.tell(Orders(dropped=["a2"]))
    assert [item.attempt for item in queue.left()] == ["a3"]


@pytest.mark.parametrize("backlog", [Backlog(), PlannedBacklog(Gate(1))])
def test_a_node_that_was_lost_while_others_were_asked_has_no_orders(backlog: Backlog) -> None:
    backlog.accept(FIRST, False, ["a@n1"], None)
    asked = backlog.nodes
    backlog.lose_node("n1", "node n1 is gone")
    orders = [backlog.orders(node) for node in asked]
    assert [(o.expected, o.wanted, o.published, o.dropped) for o in orders] == [([], [], [], [])]


@pytest.mark.parametrize("backlog", [Backlog(), PlannedBacklog(Gate(1))])
def test_what_a_node_has_removed_is_not_in_its_orders_any_more(backlog: Backlog) -> None:
    for number in range(3):
        checkpoint, attempt = f"t/checkpoint_{number:06}", f"a{number}"
        backlog.accept(checkpoint, False, [f"{attempt}@n1"], None)
        backlog.orders("n1")
        backlog.hear("n1", News(held=[attempt], stored={attempt: "there"}))
        backlog.published(checkpoint)
        assert backlog.orders("n1").published == [attempt]
        backlog.hear("n1", News())
    assert backlog.orders("n1").published == []


@pytest.mark.parametrize("with_node", [True, False])
@pytest.mark.parametrize("keeps_all", [True, False])
def test_what_is_lost_behind_its_trial_is_missed_where_all_is_kept(
    keeps_all: bool, with_node: bool
) -> None:
    backlog = Backlog()
    backlog.keeps_all = keeps_all
    backlog.accept(FIRST, False, ["a@n1"], None)
    if with_node:
        backlog.lose_node("n1", "node n1 is gone")
    else:
        backlog.hear("n1", News(failed={"a": "damaged"}))
    assert list(backlog.lost_for_good()) == [FIRST]
    backlog.accept(SECOND, False, ["b@n2"], None)
    backlog.published(SECOND)
    assert list(backlog.lost_for_good()) == ([FIRST] if keeps_all and not with_node else [])
