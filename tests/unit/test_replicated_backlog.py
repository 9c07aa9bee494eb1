"""What two nodes have is lost with both of them only, and one of them sends it."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tune_sync.sending.backlog import NOT_STAGED, Backlog
from tune_sync.sending.gate import Gate
from tune_sync.sending.orders import News
from tune_sync.sending.planned import PlannedBacklog

C = "t/checkpoint_000000"
HOME, WORKER, OTHER = "home", "worker", "other"
NODES = (HOME, WORKER, OTHER)


def accepted(*attempts: str, backlog: Backlog | None = None) -> Backlog:
    made = backlog or Backlog()
    made.accept(C, False, attempts, None)
    return made


def test_the_node_that_is_named_first_sends_and_both_are_asked() -> None:
    backlog = accepted("a@worker@home")
    assert set(backlog.nodes) == {HOME, WORKER}
    assert backlog.orders(WORKER).expected == ["a"]
    assert backlog.orders(HOME).expected == []
    assert set(backlog.orders(HOME).parts) == {"a"}, "it may have to send it without a driver"


def test_with_its_node_gone_the_other_one_sends_it() -> None:
    backlog = accepted("a@worker@home")
    backlog.lose_node(WORKER, "gone")
    assert backlog.lost == {}
    assert backlog.orders(HOME).expected == ["a"]
    backlog.hear(HOME, News(held=["a"], stored={"a": "there"}))
    (complete,) = backlog.complete()
    assert complete.attempts == ["there"]
    assert backlog.needed_nodes(C) == set()


def test_a_node_that_is_known_to_be_gone_when_a_report_arrives_costs_nothing() -> None:
    backlog = Backlog()
    backlog.lose_node(WORKER, "gone")
    accepted("a@worker@home", backlog=backlog)
    backlog.lose_node(WORKER, "gone")
    assert backlog.orders(HOME).expected == ["a"]


def test_with_the_node_of_the_replica_gone_all_goes_on_and_with_both_it_is_lost() -> None:
    backlog = accepted("a@worker@home")
    backlog.lose_node(HOME, "gone")
    assert backlog.lost == {}
    assert backlog.orders(WORKER).expected == ["a"]
    backlog.lose_node(WORKER, "gone too")
    assert backlog.lost == {C: "gone too"}


def test_a_node_that_has_it_no_more_or_cannot_send_it_makes_way_for_the_other() -> None:
    for news in (News(missing=["a"]), News(held=["a"], failed={"a": "damaged"})):
        backlog = accepted("a@worker@home")
        backlog.hear(WORKER, news)
        assert backlog.orders(HOME).expected == ["a"]
        backlog.hear(HOME, News(missing=["a"]))
        assert backlog.lost == {C: NOT_STAGED}


def test_what_a_node_was_not_told_of_when_it_was_asked_is_not_taken_for_gone() -> None:
    backlog = accepted("a@worker@home")
    backlog.orders(HOME)
    backlog.hear(WORKER, News(held=["a"], stored={"a": "there"}))
    backlog.published(C)
    backlog.hear(HOME, News())  # said before its replica came, and slow to arrive
    assert list(backlog.orders(HOME).published) == ["a"]
    backlog.hear(HOME, News())
    assert list(backlog.orders(HOME).published) == []


def test_both_nodes_are_told_when_it_is_published_or_dropped() -> None:
    both = News(held=["a"])
    for backlog in (accepted("a@worker@home"), accepted("a@worker@home")):
        backlog.hear(HOME, both)
        backlog.hear(WORKER, News(held=["a"], stored={"a": "there"}))
        backlog.published(C)
        assert [list(backlog.orders(n).published) for n in (HOME, WORKER)] == [["a"], ["a"]]
    backlog = accepted("a@worker@home")
    backlog.lose(C, "damaged")
    assert [list(backlog.orders(n).dropped) for n in (HOME, WORKER)] == [["a"], ["a"]]


def test_parts_of_several_ranks_go_on_from_wherever_each_is() -> None:
    backlog = accepted("a@worker@home", "b@other@home", "c@home@worker")
    backlog.hear(OTHER, News(held=["b"], stored={"b": "b-there"}))
    backlog.lose_node(WORKER, "gone")
    backlog.lose_node(OTHER, "gone")
    assert backlog.lost == {}
    assert sorted(backlog.orders(HOME).expected) == ["a", "c"]


def test_where_the_driver_plans_the_other_node_is_told_to_send() -> None:
    backlog = accepted("a@worker@home", backlog=PlannedBacklog(Gate(1)))
    backlog.plan(0.0)
    assert backlog.orders(WORKER).wanted == ["a"]
    assert backlog.orders(HOME).wanted == []
    backlog.lose_node(WORKER, "gone")
    backlog.plan(1.0)
    assert backlog.orders(HOME).wanted == ["a"]


class Losses(RuleBasedStateMachine):
    """Nodes that send, lose and go: a checkpoint is lost only if a part of it is nowhere."""

    @initialize()
    def begin(self) -> None:
        self.backlog = Backlog()
        self.alive = set(NODES)
        self.held: dict[str, set[str]] = {node: set() for node in NODES}
        self.parts: dict[str, list[str]] = {}
        self.stored: set[str] = set()
        self.count = 0

    @rule(places=st.lists(st.permutations(NODES).map(lambda p: p[:2]), min_size=1, max_size=3),
          doubled=st.booleans())  # fmt: skip
    def report(self, places: list[list[str]], doubled: bool) -> None:
        checkpoint, names, reported = f"t/checkpoint_{self.count:06d}", [], []
        self.count += 1
        for number, nodes in enumerate(places):
            names.append(f"{checkpoint[-6:]}-{number}")
            kept = nodes if doubled else nodes[:1]
            reported.append("@".join((names[-1], *kept)))
            for node in self.alive.intersection(kept):
                self.held[node].add(names[-1])
        self.parts[checkpoint] = names
        self.backlog.accept(checkpoint, False, reported, None)

    @rule(node=st.sampled_from(NODES))
    def lose_node(self, node: str) -> None:
        self.held[node].clear()
        self.alive.discard(node)

    @rule(node=st.sampled_from(NODES), data=st.data())
    def someone_removes_one(self, node: str, data: st.DataObject) -> None:
        if self.held[node]:
            self.held[node].discard(data.draw(st.sampled_from(sorted(self.held[node]))))

    @rule(node=st.sampled_from(NODES), sends=st.booleans())
    def ask(self, node: str, sends: bool) -> None:
        orders = self.backlog.orders(node)
        if node not in self.alive:
            self.backlog.lose_node(node, "gone")
            self.alive.add(node)  # another one of that name, with nothing
            return
        gone = {*orders.published, *orders.dropped} & self.held[node]
        self.held[node] -= gone
        mine = set(orders.expected) & self.held[node]
        sent = mine if sends else set()
        self.stored |= sent
        self.backlog.hear(node, News(
            held=sorted(self.held[node]), stored={a: a for a in sent},
            missing=sorted(set(orders.expected) - self.held[node]),
        ))  # fmt: skip

    @precondition(lambda self: self.count)
    @rule()
    def publish(self) -> None:
        for found in self.backlog.complete():
            assert set(self.parts[found.checkpoint]) <= self.stored
            self.backlog.published(found.checkpoint)
            del self.parts[found.checkpoint]

    @invariant()
    def what_is_lost_is_nowhere(self) -> None:
        here = set().union(*self.held.values()) | self.stored
        for checkpoint in self.backlog.lost:
            assert not set(self.parts.get(checkpoint, ["?"])) <= here

    @invariant()
    def one_node_at_a_time_sends_a_part(self) -> None:
        expected = [a for node in NODES for a in self.backlog.orders(node).expected]
        assert len(expected) == len(set(expected))


TestLosses = Losses.TestCase
