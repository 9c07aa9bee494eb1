"""The driver says now and then how far write-behind is, as long as there is something to say."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import pytest

from tests.unit.staged import sealed
from tune_sync.behind.behind import Behind
from tune_sync.behind.nodes import NodeLostError
from tune_sync.behind.telling import Telling
from tune_sync.homes.home import LocalHome
from tune_sync.publisher import Publisher
from tune_sync.sending.orders import News, Orders

FIRST, SECOND = "t/checkpoint_000000", "t/checkpoint_000001"
EVERY_S = 0.6
TIMEOUT_S = 60.0


class OneNode:
    """What a node says is in `news`; it is gone if that is None."""

    def __init__(self) -> None:
        self.news: News | None = News()
        self.lost: list[dict[str, str]] = []

    def exchange(
        self, nodes: Collection[str], orders: Callable[[str], Orders]
    ) -> dict[str, News | Exception]:
        return {
            node: NodeLostError(f"node {node} is gone") if self.news is None else self.news
            for node in nodes
        }

    def close(self, nodes: Collection[str]) -> None:
        pass

    def is_alive(self, node: str) -> bool:
        return self.news is not None

    def tell_lost(self, lost: Mapping[str, str]) -> None:
        self.lost.append(dict(lost))


@pytest.fixture
def node() -> OneNode:
    return OneNode()


@pytest.fixture
def home(tmp_path: Path) -> LocalHome:
    return LocalHome(tmp_path)


@pytest.fixture
def behind(node: OneNode, home: LocalHome) -> Iterator[Behind]:
    made = Behind(home, Publisher(home.committer), node, where="exp", say_every_s=EVERY_S)
    yield made
    made.close(TIMEOUT_S)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "ray.tune_sync")
    return lambda: [r.getMessage() for r in caplog.records if r.getMessage().startswith("exp: ")]


def until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_it_says_what_is_staged_and_is_quiet_before_and_after(
    behind: Behind, node: OneNode, home: LocalHome, lines: Callable[[], list[str]]
) -> None:
    time.sleep(2 * EVERY_S)
    assert lines() == []
    node.news = News(held=["a"], left_count=1, left_bytes=5_000_000, left_s=7.0)
    behind.accept(FIRST, False, ["a@n1"], None)
    until(lambda: len(lines()) >= 2)
    assert lines()[-1] == ("exp: 1 checkpoint (5 MB) is on its way, the oldest for 7 s; stored: 0")
    node.news = News(held=["a"], stored={"a": sealed(home.committer, {"f": b"1"}, FIRST)})
    behind.flush(TIMEOUT_S)

    def is_quiet() -> bool:
        said = len(lines())
        time.sleep(2 * EVERY_S)
        return len(lines()) == said

    until(is_quiet)  # one line may have been on its way


def test_lines_are_no_closer_than_asked_for(
    behind: Behind, node: OneNode, lines: Callable[[], list[str]]
) -> None:
    node.news = News(held=["a"], left_count=1)
    start_s = time.monotonic()
    behind.accept(FIRST, False, ["a@n1"], None)
    until(lambda: len(lines()) >= 3)
    assert time.monotonic() - start_s > 2 * EVERY_S


def test_what_cannot_be_written_is_said_at_once_and_not_with_each_of_many_tries(
    behind: Behind, lines: Callable[[], list[str]]
) -> None:
    """A full disk stays full for hours, and each half second it is tried again."""
    tries = [1]

    def write() -> None:
        tries.append(1)
        if len(tries) < 5:
            raise OSError(errno.ENOSPC, f"{len(tries)} bytes are free")

    behind.offer("experiment_state-1.json", write, is_state=True, names=True)
    behind.flush(TIMEOUT_S)
    assert len(tries) == 5
    (said,) = (line for line in lines() if "cannot write to the destination now" in line)
    assert "2 bytes are free" in said


def test_what_is_lost_is_said_and_told_once(
    behind: Behind, node: OneNode, lines: Callable[[], list[str]]
) -> None:
    behind.accept(FIRST, False, ["a@n1"], None)
    node.news = None
    until(lambda: bool(lines()))
    assert "failed: 1" in lines()[-1]
    assert node.lost == [{FIRST: "node n1 is gone"}]


def test_a_process_that_ends_is_no_destination_that_fails(
    node: OneNode, caplog: pytest.LogCaptureFixture
) -> None:
    telling = Telling("exp", node)
    telling.failed(RuntimeError("cannot schedule new futures after interpreter shutdown"))
    assert not caplog.records
    telling.failed(OSError(errno.EIO, "input or output"))
    assert "goes on trying" in caplog.text
