"""The driver of write-behind goes on: one that cannot be written keeps no other one from it."""

from __future__ import annotations

import errno
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.unit.staged import placed, sealed
from tests.unit.test_behind_says import until
from tests.unit.test_run_left import Silent
from tune_sync import layout
from tune_sync.behind import behind as module
from tune_sync.behind.behind import Behind
from tune_sync.errors import NotStoredError
from tune_sync.homes.home import LocalHome
from tune_sync.manifest import Placed
from tune_sync.new_run import make_backlog
from tune_sync.publisher import Publisher
from tune_sync.sending.backlog import Backlog
from tune_sync.sending.orders import News, Orders
from tune_sync.spec import Options

TIMEOUT_S, SHORT_S = 30.0, 1.5
STATE = "experiment_state-1.json"

Make = Callable[..., Behind]


class Refusing(LocalHome):
    """Takes checkpoints of some trials only.

    Attributes:
        refused: Trials of which none is placed.
    """

    refused: tuple[str, ...] = ()

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        place = self.committer.place

        def place_some(checkpoint: str, **more: Any) -> Placed:
            if checkpoint.split("/")[0] in self.refused:
                raise PermissionError(errno.EACCES, f"cannot write {checkpoint}")
            return place(checkpoint, **more)

        self.committer.place = place_some  # type: ignore[method-assign]


@pytest.fixture
def home(tmp_path: Path) -> Refusing:
    return Refusing(tmp_path)


@pytest.fixture
def make(home: Refusing, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(module, "ASK_S", 0.02)
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    publisher, made = Publisher(home.committer), list[Behind]()

    def make_one(nodes: Any = None, backlog: Backlog | None = None) -> Behind:
        made.append(Behind(home, publisher, nodes or Silent(), backlog=backlog))
        return made[-1]

    yield make_one
    for behind in made:
        behind.close(TIMEOUT_S)
    publisher.close(TIMEOUT_S)


def fail() -> None:
    raise PermissionError(errno.EACCES, "this one cannot be replaced")


def test_a_file_that_cannot_be_written_stops_no_delete_and_is_named(
    make: Make, home: Refusing, tmp_path: Path
) -> None:
    behind = make()
    checkpoint = "t/checkpoint_000000"
    behind.accept_placed(placed(home.committer, {"a": b"1"}, checkpoint))
    until(lambda: behind.newest_published("t") == checkpoint)
    behind.retire_later(checkpoint)
    behind.offer("t/result.json", fail, is_state=False)
    for number in range(2):
        wrote = threading.Event()
        behind.offer(STATE, wrote.set, is_state=True, names=True)
        assert wrote.wait(TIMEOUT_S), number
    until(lambda: not (tmp_path / checkpoint).exists())
    with pytest.raises(NotStoredError) as left:
        behind.flush(SHORT_S)
    assert "t/result.json" in str(left.value) and "cannot be replaced" in str(left.value)
    assert "the last state" not in str(left.value)


@pytest.mark.parametrize("refused", [("t",), ("t", "s", "r")])
def test_one_that_cannot_be_published_holds_no_later_one_up(
    make: Make, home: Refusing, refused: tuple[str, ...]
) -> None:
    home.refused = refused
    behind = make()
    for trial in (*refused, "u", "v"):
        checkpoint = f"{trial}/checkpoint_000000"
        attempt = sealed(home.committer, {"a": b"1"}, checkpoint)
        behind.accept(checkpoint, False, [attempt], None)
    until(lambda: bool(behind.newest_published("u") and behind.newest_published("v")))
    with pytest.raises(NotStoredError) as left:
        behind.flush(SHORT_S)
    assert "cannot write" in str(left.value) and "t/checkpoint_000000" in str(left.value)
    home.refused = ()
    behind.flush(TIMEOUT_S)
    assert behind.newest_published("t")


def test_one_that_is_published_is_not_lost_as_something_fails_after_that(
    make: Make, home: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again, and by then nothing is left of what it was made of."""
    sync, failed = home.committer.store.sync, list[str]()

    def sync_all_but_trash(key: str) -> None:
        if key == layout.TRASH_DIR and not failed:
            failed.append(key)
            raise OSError(errno.EIO, "the disk does not answer")
        sync(key)

    monkeypatch.setattr(home.committer.store, "sync", sync_all_but_trash)
    behind, checkpoint = make(), "t/checkpoint_000000"
    attempt = sealed(home.committer, {"a": b"1"}, checkpoint)
    behind.accept(checkpoint, False, [attempt], None)
    behind.flush(TIMEOUT_S)
    assert failed
    assert behind.newest_published("t") == checkpoint
    assert behind.why_lost(checkpoint) == ""


class Node(Silent):
    """One node that has all that it is told to send at the destination at once."""

    def __init__(self) -> None:
        self.wanted: list[str] = []

    def exchange(
        self, nodes: Collection[str], orders: Callable[[str], Orders]
    ) -> dict[str, News | Exception]:
        self.wanted = [a for node in nodes for a in orders(node).wanted]
        return {node: News() for node in nodes}


def test_with_an_endless_period_the_last_one_of_each_trial_travels_at_the_end(make: Make) -> None:
    node = Node()
    options = Options(sync_on_checkpoint=False, sync_period_s=math.inf, wait_for="staged")
    behind = make(node, make_backlog(options))
    behind.accept("t/checkpoint_000000", False, ["a@n1"], None)
    time.sleep(0.2)
    assert node.wanted == []
    with pytest.raises(NotStoredError):
        behind.flush(SHORT_S)
    assert node.wanted == ["a"]
    assert behind._thread.is_alive()


def test_the_end_waits_no_longer_than_something_moves_and_not_at_all_for_what_is_lost(
    make: Make,
) -> None:
    behind = make()
    behind.accept("t/checkpoint_000000", False, ["a@n1"], None)
    behind.offer(STATE, lambda: None, is_state=True, names=True)
    start_s = time.monotonic()
    with pytest.raises(NotStoredError, match="t/checkpoint_000000"):
        behind.flush(SHORT_S)
    assert SHORT_S <= time.monotonic() - start_s < TIMEOUT_S
    behind._asking.lose_node("n1", "node n1 is gone")
    start_s = time.monotonic()
    with pytest.raises(NotStoredError, match="node n1 is gone"):
        behind.flush(10 * TIMEOUT_S)
    assert time.monotonic() - start_s < TIMEOUT_S


class Closed(Node):
    """One that has what it is told to send at the destination once it may.

    Attributes:
        stored: Its attempts -> their ids there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[str, str] = {}
        self.told: list[str] = []

    def exchange(
        self, nodes: Collection[str], orders: Callable[[str], Orders]
    ) -> dict[str, News | Exception]:
        return {node: News(held=["a"], stored=self.stored) for node in nodes}

    def close(self, nodes: Collection[str]) -> None:
        self.told += nodes


@pytest.mark.parametrize("is_stored", [True, False])
def test_nodes_hear_that_the_run_is_over_only_if_they_have_nothing_left_to_send(
    make: Make, home: Refusing, is_stored: bool
) -> None:
    node = Closed()
    behind = make(node)
    checkpoint = "t/checkpoint_000000"
    if is_stored:
        node.stored = {"a": sealed(home.committer, {"a": b"1"}, checkpoint)}
    behind.accept(checkpoint, False, ["a@n1"], None)
    with nullcontext() if is_stored else pytest.raises(NotStoredError):
        behind.flush(TIMEOUT_S if is_stored else SHORT_S)
    behind.close(TIMEOUT_S)
    assert node.told == (["n1"] if is_stored else [])


class Faulty(Backlog):
    """A backlog with a fault.

    Attributes:
        faults_count: So many turns fail.
    """

    faults_count = 0

    def plan(self, now_s: float) -> None:
        if self.faults_count:
            self.faults_count -= 1
            raise ValueError("cannot convert float NaN to integer")
        super().plan(now_s)


def test_a_fault_of_the_thread_that_asks_is_told_and_ends_the_wait_for_the_end(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    backlog = Faulty()
    backlog.faults_count = 10**9
    behind = make(backlog=backlog)
    behind.offer(STATE, lambda: None, is_state=True, names=True)
    start_s = time.monotonic()
    with pytest.raises(NotStoredError, match="cannot convert float NaN"):
        behind.flush(10 * TIMEOUT_S)
    assert time.monotonic() - start_s < TIMEOUT_S
    (said,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "cannot convert float NaN" in said.getMessage() and said.exc_info


def test_the_thread_goes_on_after_a_fault(make: Make) -> None:
    backlog = Faulty()
    backlog.faults_count = 3
    behind, wrote = make(backlog=backlog), list[int]()
    behind.offer(STATE, lambda: wrote.append(1), is_state=True, names=True)
    behind.flush(TIMEOUT_S)
    assert wrote == [1]
