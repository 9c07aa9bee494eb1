"""One name at most once in a while; the newest of what waits, and never two at a time."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

import pytest

from tests.unit.clock import Clock
from tune_sync.paced import Paced

PERIOD_S = 1.0
TIMEOUT_S = 30.0


def test_of_many_the_first_and_the_last_are_done() -> None:
    clock = Clock()
    paced, done, dropped = Paced(PERIOD_S, clock), list[int](), list[int]()
    for number in range(100):
        paced.do("state", lambda n=number: done.append(n), lambda n=number: dropped.append(n))  # type: ignore[misc]
    assert not paced.flush(0.1)
    assert done == [0], "its time has not come, and nobody waits for that"
    clock.now_s += PERIOD_S
    assert paced.flush(TIMEOUT_S)
    assert done == [0, 99] and dropped == list(range(1, 99))


def test_names_do_not_wait_for_each_other() -> None:
    paced, done = Paced(PERIOD_S), defaultdict(list)
    for number in range(2):
        for name in map(str, range(50)):
            paced.do(name, lambda n=name, k=number: done[n].append(k), lambda: None)  # type: ignore[misc]
    start_s = time.monotonic()
    assert paced.flush(TIMEOUT_S)
    assert time.monotonic() - start_s < 10 * PERIOD_S  # one after the other, it would be 50
    assert set(map(tuple, done.values())) == {(0, 1)} and len(done) == 50


def test_one_that_is_under_way_is_never_joined_by_a_second() -> None:
    paced, may_end, order = Paced(0.0), threading.Event(), []

    def slow() -> None:
        may_end.wait(TIMEOUT_S)
        order.append("slow")

    thread = threading.Thread(target=lambda: paced.do("x", slow, lambda: None))
    thread.start()
    while not paced._running:
        time.sleep(0.001)
    paced.do("x", lambda: order.append("next"), lambda: None)
    assert not paced.flush(0.05)
    may_end.set()
    assert paced.flush(TIMEOUT_S)
    thread.join(TIMEOUT_S)
    assert order == ["slow", "next"]


def test_what_its_caller_must_not_wait_for_is_done_by_a_thread() -> None:
    paced, may_end, done = Paced(0.0), threading.Event(), []

    def slow() -> None:
        may_end.wait(TIMEOUT_S)
        done.append("slow")

    paced.do("x", slow, lambda: None, waits=False)
    assert not done
    may_end.set()
    assert paced.flush(TIMEOUT_S)
    assert done == ["slow"]


def test_it_works_again_after_a_rest() -> None:
    paced, done = Paced(0.01), []
    for number in range(5):
        paced.do("x", lambda n=number: done.append(n), lambda: None)  # type: ignore[misc]
        assert paced.flush(TIMEOUT_S)
        time.sleep(0.02)
    assert done == [0, 1, 2, 3, 4]


def test_who_brings_a_newer_one_hears_nothing_of_a_drop_that_fails() -> None:
    paced, may_end, done = Paced(0.0), threading.Event(), []
    paced.do("x", lambda: may_end.wait(TIMEOUT_S), lambda: None, waits=False)  # type: ignore[arg-type,return-value]
    while paced._waiting:
        time.sleep(0.001)

    def fail() -> None:
        raise OSError("stale file handle")

    paced.do("x", lambda: done.append("older"), fail, waits=False)
    paced.do("x", lambda: done.append("newer"), lambda: None, waits=False)
    may_end.set()
    assert paced.flush(TIMEOUT_S)
    assert done == ["newer"]


def test_what_finds_no_thread_is_refused_and_the_next_one_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    paced, done = Paced(0.0), []
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        for _ in range(20):
            with pytest.raises(RuntimeError, match="thread"):
                paced.do("x", lambda: done.append("refused"), lambda: None, waits=False)
    assert paced.flush(0.1), "nothing waits"
    paced.do("y", lambda: done.append("next"), lambda: None, waits=False)
    assert paced.flush(TIMEOUT_S)
    assert done == ["next"]


def test_many_that_wait_cost_no_more_each_than_few() -> None:
    paced, may_go, done = Paced(0.0), threading.Event(), []
    for number in range(8):
        paced.do(f"slow {number}", lambda: may_go.wait(TIMEOUT_S), lambda: None, waits=False)  # type: ignore[arg-type,return-value]
    for number in range(8000):
        paced.do(str(number), lambda n=number: done.append(n), lambda: None, waits=False)  # type: ignore[misc]
    start_s = time.process_time()
    may_go.set()
    assert paced.flush(TIMEOUT_S)
    assert time.process_time() - start_s < 2.0  # 5.6 s where each looked at all that wait
    assert sorted(done) == list(range(8000))


def test_a_flush_gives_up_only_where_nothing_ends() -> None:
    paced = Paced(0.0)
    for number in range(40):
        paced.do(str(number), lambda: time.sleep(0.2), lambda: None, waits=False)
    assert paced.flush(0.7), "five times eight of 0.2 s"


def test_who_brings_too_much_waits_until_there_is_room() -> None:
    paced, may_end, done = Paced(0.0, held_bytes=100), threading.Event(), []

    def slow() -> None:
        may_end.wait(TIMEOUT_S)

    paced.do("a", slow, lambda: None, waits=False, size_bytes=60)
    paced.do("b", slow, lambda: None, waits=False, size_bytes=30)
    while paced._waiting:
        time.sleep(0.001)
    for number in range(10):  # a newer one in the place of another
        paced.do("b", lambda n=number: done.append(n), lambda: None, waits=False, size_bytes=10)  # type: ignore[misc]
    paced.do("state", lambda: done.append("state"), lambda: None, waits=False)

    def bring() -> None:
        paced.do("c", lambda: done.append("c"), lambda: None, waits=False, size_bytes=500)

    thread = threading.Thread(target=bring)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive() and "c" not in done
    may_end.set()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive() and paced.flush(TIMEOUT_S)
    assert sorted(map(str, done)) == ["9", "c", "state"]
