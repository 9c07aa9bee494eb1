"""Jobs beside the control loop."""

from __future__ import annotations

import threading

from tune_sync.worker import Worker

TIMEOUT_S = 60.0


def test_later_jobs_that_are_done_do_not_stand_for_an_earlier_one() -> None:
    worker = Worker("test", threads_count=2)
    goes_on, is_done = threading.Event(), threading.Event()
    worker.add(lambda: goes_on.wait(TIMEOUT_S) and None)
    assert worker.wait(0.01) == 1
    for job in (lambda: None, is_done.set):
        worker.add(job)
    assert is_done.wait(TIMEOUT_S)
    assert worker.wait(0.01) == 1
    goes_on.set()
    assert worker.wait(TIMEOUT_S) == 0
    assert worker.close(TIMEOUT_S)


def test_one_thread_does_jobs_in_their_order() -> None:
    worker, seen = Worker("test"), list[int]()
    for number in range(20):
        worker.add(lambda number=number: seen.append(number))  # type: ignore[misc]
    assert worker.wait(TIMEOUT_S) == 0 and seen == list(range(20))
    assert worker.close(TIMEOUT_S)
