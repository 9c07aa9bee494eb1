"""Many requests at a time: bounded, their errors kept by part, and given up as one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tune_sync.buckets.transfers import Transfers

WAIT_S = 60.0
SOON_S = 10.0


def test_a_part_is_over_when_all_its_requests_are() -> None:
    transfers, done = Transfers(4, 100), []
    for number in range(50):
        transfers.start("a", 10, lambda number=number: done.append(number))
    transfers.wait("a")
    assert sorted(done) == list(range(50))


def test_no_more_is_held_than_was_agreed() -> None:
    transfers, lock = Transfers(8, 100), threading.Lock()
    held, highest = 0, 0

    def act() -> None:
        nonlocal held, highest
        with lock:
            held += 40
            highest = max(highest, held)
        threading.Event().wait(0.01)
        with lock:
            held -= 40

    for _ in range(20):
        transfers.start("a", 40, act)
    transfers.wait("a")
    assert highest == 80


def test_what_is_larger_than_the_bound_goes_alone() -> None:
    transfers, done = Transfers(4, 100), []
    transfers.start("a", 1000, lambda: done.append(1))
    transfers.start("a", 1000, lambda: done.append(2))
    transfers.wait("a")
    assert sorted(done) == [1, 2]


def test_an_error_is_its_part_s_alone_and_stays() -> None:
    transfers, done = Transfers(1, 100), []

    def fail() -> None:
        raise OSError("lost")

    transfers.start("a", 1, fail)
    with pytest.raises(OSError, match="lost"):
        transfers.wait("a")
    with pytest.raises(OSError, match="lost"):
        transfers.start("a", 1, lambda: done.append("a"))
    transfers.start("b", 1, lambda: done.append("b"))
    transfers.wait("b")
    assert done == ["b"]


def test_a_part_that_is_dropped_ends_what_is_under_way_and_begins_nothing() -> None:
    transfers, begun, go, done = Transfers(1, 100), threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        go.wait(WAIT_S)
        done.append("slow")

    transfers.start("a", 1, slow)
    transfers.start("a", 1, lambda: done.append("late"))
    begun.wait(WAIT_S)
    dropping = threading.Thread(target=transfers.drop, args=("a",))
    dropping.start()
    while dropping.is_alive() and not transfers._dropped["a"]:
        time.sleep(0.001)  # what begins before that is done
    dropping.join(0.05)
    assert dropping.is_alive()
    go.set()
    dropping.join(WAIT_S)
    assert done == ["slow"]
    transfers.wait("a")


def test_what_ends_a_request_without_an_error_ends_no_wait() -> None:
    class Panic(BaseException):
        """As of a library in Rust."""

    def act() -> None:
        raise Panic("it broke")

    transfers = Transfers(1, 100)
    transfers.start("a", 1, act)
    ended: list[BaseException] = []
    assert _in_time(lambda: transfers.wait("a"), ended)
    assert "it broke" in str(ended[0])


def test_a_request_that_finds_no_thread_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    transfers, done = Transfers(1, 100), list[str]()

    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", none_left)
        with pytest.raises(RuntimeError, match="new thread"):
            transfers.start("a", 100, lambda: done.append("never"))
    assert _in_time(lambda: transfers.drop("a"), [])
    transfers.start("b", 100, lambda: done.append("b"))  # nothing is held for what never began
    transfers.wait("b")
    assert done == ["b"]


def _in_time(act: Callable[[], None], ended: list[BaseException]) -> bool:
    """Whether it ends, with an error or without."""

    def run() -> None:
        try:
            act()
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SOON_S)
    return not thread.is_alive()
