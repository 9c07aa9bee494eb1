"""One name at most once in a while; the newest of what waits, and never two at a time."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

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
