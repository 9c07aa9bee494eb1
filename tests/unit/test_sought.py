"""What an agent has sent, and removed, before its driver went on is found at the destination."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.test_node_sender import FIRST, SECOND, TIMEOUT_S, Shaky, report, staging, until
from tune_sync.behind.left_behind import remove_sent
from tune_sync.behind.node_sender import NodeSender
from tune_sync.behind.sought import sealed_from
from tune_sync.sending.backlog import Backlog
from tune_sync.sending.orders import News, Orders


@pytest.fixture
def home(tmp_path: Path) -> Shaky:
    return Shaky(tmp_path / "home")


@pytest.fixture
def make(tmp_path: Path, home: Shaky) -> Iterator[Callable[[], NodeSender]]:
    made: list[NodeSender] = []

    def open_home() -> Shaky:
        if not home.is_up:
            raise ConnectionError("it does not answer")
        return home

    def sender() -> NodeSender:
        made.append(NodeSender(tmp_path / "node", open_home, 1 << 30, first_pause_s=0.01))
        return made[-1]

    yield sender
    for one in made:
        one.end()


def heard(sender: NodeSender, orders: Orders, holds: Callable[[News], bool]) -> News:
    end_s = time.monotonic() + TIMEOUT_S
    while not holds(news := sender.exchange(orders)):
        assert time.monotonic() < end_s, news
        time.sleep(0.01)
    return news


def test_a_driver_that_was_stopped_learns_that_all_was_sent_while_it_was_silent(
    tmp_path: Path, home: Shaky, make: Callable[[], NodeSender]
) -> None:
    backlog, sender = Backlog(), make()
    uploads = [report(staging(tmp_path, home, sender), name) for name in (FIRST, SECOND)]
    for name, upload in zip((FIRST, SECOND), uploads, strict=True):
        backlog.accept(name, False, [upload.reported_as], None)
    sender.go_on_alone()
    until(sender, lambda n: len(n.stored) == 2)
    sender.end(leave=True)
    assert remove_sent([tmp_path / "node"])
    again = make()
    orders = backlog.orders("node1")
    backlog.hear("node1", heard(again, orders, lambda n: len(n.stored) == 2))
    assert not backlog.lost
    assert [one.checkpoint for one in backlog.complete()] == [FIRST, SECOND]
    for one in backlog.complete():
        placed = home.committer.place(one.checkpoint, attempts=one.attempts)
        home.committer.record(placed.manifest)
    assert sealed_from(home) == {}


def test_while_the_destination_cannot_be_asked_nothing_is_missing(
    home: Shaky, make: Callable[[], NodeSender]
) -> None:
    sender, orders = make(), Orders(expected=["0" * 32])
    home.is_up = False
    assert [sender.exchange(orders).missing for _ in range(3)] == [[], [], []]
    home.is_up = True
    heard(sender, orders, lambda news: list(news.missing) == ["0" * 32])


def test_a_torn_seal_there_hides_none_of_the_others(
    tmp_path: Path, home: Shaky, make: Callable[[], NodeSender]
) -> None:
    sender = make()
    uploads = [report(staging(tmp_path, home, sender), name) for name in (FIRST, SECOND)]
    news = until(sender, lambda n: len(n.stored) == 2)
    assert sealed_from(home) == news.stored
    (seal,) = (tmp_path / "home").glob(f".tune_sync/staging/{FIRST}/*/seal.json")
    seal.write_bytes(seal.read_bytes()[:-10])
    assert sealed_from(home) == {a: there for a, there in news.stored.items()
                                 if a == uploads[1].attempt}  # fmt: skip
