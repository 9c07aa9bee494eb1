"""What goes wrong with one attempt of a node, or went wrong before, does not count for others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_node_sender import FIRST, SECOND, TIMEOUT_S, Shaky, report, staging, until
from tune_sync import layout
from tune_sync.behind.node_sender import NodeSender
from tune_sync.behind.settling import Settling
from tune_sync.errors import StoreUnreachableError
from tune_sync.sending.orders import Orders


@pytest.fixture
def home(tmp_path: Path) -> Shaky:
    return Shaky(tmp_path / "home")


@pytest.fixture
def make(tmp_path: Path, home: Shaky) -> Iterator[Callable[..., NodeSender]]:
    made: list[NodeSender] = []

    def sender(**more: Any) -> NodeSender:
        made.append(NodeSender(tmp_path / "node", lambda: home, 1 << 30, **more))
        return made[-1]

    yield sender
    for one in made:
        one.end()


def in_the_way(tmp_path: Path, key: str) -> None:
    (tmp_path / "node" / key / "in the way").mkdir(parents=True)


def test_an_attempt_that_cannot_be_removed_keeps_no_news_of_others_back(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    first, second = (report(staging(tmp_path, home, sender), c) for c in (FIRST, SECOND))
    until(sender, lambda n: len(n.stored) == 2)
    in_the_way(tmp_path, f"{layout.TRASH_DIR}/{first.attempt}")
    orders = Orders(expected=[second.attempt], dropped=[first.attempt])
    assert second.attempt in sender.exchange(orders).stored
    assert first.attempt in sender.exchange(orders).held


def test_an_attempt_whose_parts_cannot_be_noted_keeps_no_news_of_others_back(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    first, second = (
        report(staging(tmp_path, home, sender), c, ranks_count=2) for c in (FIRST, SECOND)
    )
    until(sender, lambda n: len(n.stored) == 2)
    in_the_way(tmp_path, f"{layout.attempt_key(FIRST, first.attempt)}/parts.json")
    parts = {upload.attempt: [upload.attempt, "other"] for upload in (first, second)}
    assert sender.exchange(Orders(parts=parts)).noted == [second.attempt]


def test_an_attempt_that_cannot_be_read_keeps_no_news_of_others_back(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    in_the_way(tmp_path, f"{layout.attempt_key(FIRST, '0' * 32)}/seal.json")
    upload = report(staging(tmp_path, home, sender), SECOND)
    until(sender, lambda n: upload.attempt in n.stored)
    assert sender.exchange(Orders(expected=["0" * 32])).missing == ["0" * 32]


class Counting(Shaky):
    """Tells when it was asked."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.was_asked = threading.Event()

    def begin(self, checkpoint: str) -> str:
        self.was_asked.set()
        return super().begin(checkpoint)


def test_a_report_after_an_outage_is_tried_before_it_counts_as_failed(tmp_path: Path) -> None:
    home = Counting(tmp_path / "home")
    home.is_up = False
    sender = NodeSender(tmp_path / "node", lambda: home, 1 << 30, first_pause_s=3600.0)
    try:
        waiting = staging(tmp_path, home, sender, settling=Settling(sender, TIMEOUT_S, 2))
        first = report(waiting, FIRST)
        assert first.attempt not in sender.status().stored
        home.is_up = True
        second = report(waiting, SECOND)
        assert second.attempt in until(sender, lambda n: not n.left_count).stored
    finally:
        sender.end()


def test_in_an_outage_each_report_is_tried_before_it_counts_as_failed(tmp_path: Path) -> None:
    home = Counting(tmp_path / "home")
    home.is_up = False
    sender = NodeSender(tmp_path / "node", lambda: home, 1 << 30, first_pause_s=3600.0)
    try:
        waiting = staging(tmp_path, home, sender, settling=Settling(sender, TIMEOUT_S, 2))
        report(waiting, FIRST)
        home.was_asked.clear()
        with pytest.raises(StoreUnreachableError, match=r"last 2 reports.*it does not answer"):
            report(waiting, SECOND)
        assert home.was_asked.is_set()
    finally:
        sender.end()
