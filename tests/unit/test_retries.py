"""What fails again and again holds up nothing else, and does not count as something that moves."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_node_sender import TIMEOUT_S, report, staging, until
from tests.unit.test_send_queue import item
from tune_sync.agents import node_agents
from tune_sync.behind import node_sender
from tune_sync.behind.behind import Behind
from tune_sync.behind.node_sender import NodeSender
from tune_sync.errors import NotStoredError
from tune_sync.homes.home import LocalHome, Piece
from tune_sync.publisher import Publisher
from tune_sync.sending.backlog import Backlog
from tune_sync.sending.orders import News, Orders
from tune_sync.sending.queue import SendQueue
from tune_sync.sending.retries import Retries

GIVE_UP_S, PAUSE_S = 1.0, 0.1


class Refusing(LocalHome):
    """A destination that does not take what has certain names."""

    refused: tuple[str, ...] = ()

    def write_batch(self, pieces: Sequence[Piece], data: bytes | bytearray | memoryview) -> None:
        if any(name in pieces[0].key for name in self.refused):
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        super().write_batch(pieces, data)


@pytest.fixture
def home(tmp_path: Path) -> Refusing:
    return Refusing(tmp_path / "home")


@pytest.fixture
def make(
    tmp_path: Path, home: Refusing, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., NodeSender]]:
    monkeypatch.setattr(node_sender, "LONGEST_PAUSE_S", PAUSE_S)
    made: list[NodeSender] = []

    def sender(**more: Any) -> NodeSender:
        made.append(NodeSender(tmp_path / "node", lambda: home, 1 << 30, **more))
        return made[-1]

    yield sender
    for one in made:
        one.end()


class Nodes:
    """One node, which is asked without Ray."""

    def __init__(self, sender: NodeSender) -> None:
        self._sender = sender

    def exchange(
        self, nodes: Collection[str], orders: Callable[[str], Orders]
    ) -> dict[str, News | Exception]:
        return {node: self._sender.exchange(orders(node)) for node in nodes}

    def close(self, nodes: Collection[str]) -> None:
        pass

    def is_alive(self, node: str) -> bool:
        return True

    def tell_lost(self, lost: Any) -> None:
        pass

    def alive_nodes(self) -> set[str]:
        return {"node1"}


def test_two_that_the_destination_never_takes_hold_up_no_others(
    tmp_path: Path, home: Refusing, make: Callable[..., NodeSender]
) -> None:
    names = [f"t/checkpoint_{number:06d}" for number in range(8)]
    home.refused = (f"{names[0]}/", f"{names[1]}/")
    sender = make(first_pause_s=0.2)
    for name in names[:2]:
        report(staging(tmp_path, home, sender), name)
    until(sender, lambda n: bool(n.error))
    later = [report(staging(tmp_path, home, sender), name).attempt for name in names[2:]]
    assert {*until(sender, lambda n: len(n.stored) == len(later)).stored} == {*later}
    home.refused = ()
    until(sender, lambda n: not n.left_count)


def test_who_waits_for_the_end_gives_up_where_each_try_fails_alike(
    tmp_path: Path, home: Refusing, make: Callable[..., NodeSender]
) -> None:
    sender, name = make(first_pause_s=0.01), "t/checkpoint_000000"
    home.refused = (f"{name}/",)
    publisher = Publisher(home.committer)
    behind = Behind(home, publisher, Nodes(sender))
    upload = report(staging(tmp_path, home, sender), name)
    behind.accept(name, False, [upload.reported_as], None)
    began_s = time.monotonic()
    try:
        with pytest.raises(NotStoredError, match=f"not stored: {name}; {name}: .*too long"):
            behind.flush(
                GIVE_UP_S, lambda: pytest.fail("it waits on")
                if time.monotonic() - began_s > 20 * GIVE_UP_S else None
            )  # fmt: skip
    finally:
        behind.close(10.0)
        publisher.close(10.0)


def test_a_restore_gives_up_on_an_agent_whose_tries_all_fail_alike(
    tmp_path: Path, home: Refusing, make: Callable[..., NodeSender],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    sender, name = make(first_pause_s=0.01), "t/checkpoint_000000"
    home.refused = (f"{name}/",)
    report(staging(tmp_path, home, sender), name)
    began_s = time.monotonic()

    def left(name: str, asked: object) -> News:
        assert time.monotonic() - began_s < 20 * GIVE_UP_S, "it waits on"
        return sender.go_on_alone()

    monkeypatch.setattr(node_agents, "_left", left)
    monkeypatch.setattr(node_agents, "alive_nodes", lambda: {"node1"})
    assert not node_agents._finish("/exp", "run-node1", GIVE_UP_S, (None,), began_s)
    assert 0 < sender.stuck_s < TIMEOUT_S


def test_only_a_try_that_comes_further_than_those_before_gets_on() -> None:
    retries, moved = Retries(1.0, 30.0, 0.0), list[int]()
    for tries in ([5, 5], [5], [5, 5], [5, 5, 1]):
        retries.begin("a", 0.0)
        for size_bytes in tries:
            retries.goes("a", size_bytes, 0.0)
        moved.append(retries.moved_bytes)
    assert moved == [10, 10, 10, 11]
    retries.stored("a", 7.0)
    assert (retries.moved_bytes, retries.moved_s) == (12, 7.0)


def test_pauses_grow_and_are_no_shorter_than_what_the_try_took() -> None:
    retries, pauses_s = Retries(1.0, 30.0, 0.0), list[float]()
    for took_s in (0.0, 0.0, 10.0, 0.0, 0.0, 500.0):
        retries.begin("a", 100.0)
        retries.failed("a", 100.0 + took_s)
        pauses_s.append(retries.wait_s(100.0 + took_s, 1000.0))
        assert retries.paused(100.0 + took_s) == {"a"}
        assert retries.paused(100.0 + took_s + pauses_s[-1]) == set()
    assert pauses_s == [1.0, 2.0, 10.0, 8.0, 16.0, 30.0]
    retries.forget("a")
    assert retries.wait_s(0.0, 2.0) == 2.0


def test_once_another_is_stored_what_failed_is_tried_at_once_but_not_each_time() -> None:
    retries = Retries(10.0, 30.0, 0.0)
    retries.failed("a", 0.0)
    retries.stored("b", 1.0)
    assert retries.paused(1.0) == set()
    retries.failed("a", 1.0)
    retries.stored("c", 2.0)
    assert retries.paused(2.0) == {"a"}


def test_what_failed_goes_behind_the_others_and_makes_way() -> None:
    queue = SendQueue(100)
    for number in (1, 2, 3):
        queue.add(item(number))
    order = []
    for moment_s in (2.5, 10.0, 11.0):
        found = queue.next()
        assert found is not None
        order.append(found.attempt)
        queue.put_back(found.attempt, moment_s)
    assert order == ["t1", "t2", "t1"]
    queue.put_back("t1", 1.0)
    found = queue.next(["t1"])
    assert found is not None and found.attempt == "t3"


def test_an_agent_that_was_started_again_has_not_moved_by_that() -> None:
    backlog = Backlog()
    backlog.accept("t/checkpoint_000000", False, ["a@n1"], None)
    counts = []
    for sent_bytes in (0, 5, 5, 0, 3):
        backlog.hear("n1", News(held=["a"], sent_bytes=sent_bytes))
        counts.append(backlog.moves_count)
    assert counts == [0, 1, 1, 1, 2]
