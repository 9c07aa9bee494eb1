"""Threads that do jobs, in the order in which they were added, or one job for who waits for it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

T = TypeVar("T")


class Worker:
    """Jobs must not raise. Methods may be called from any thread.

    Args:
        name: Of the threads.
        threads_count: How many jobs are done at once. With one, one after the other.
    """

    def __init__(self, name: str, threads_count: int = 1) -> None:
        self._todo: deque[tuple[int, Callable[[], None]]] = deque()
        self._queue_changed = threading.Condition()
        self._added_count = 0
        self._undone: set[int] = set()
        self._closing = False
        self._threads = [
            threading.Thread(target=self._work, name=name, daemon=True)
            for _ in range(threads_count)
        ]
        for thread in self._threads:
            thread.start()

    def add(self, job: Callable[[], None]) -> None:
        """Begin a job after those added before. Returns at once."""
        with self._queue_changed:
            self._todo.append((self._added_count, job))
            self._undone.add(self._added_count)
            self._added_count += 1
            self._queue_changed.notify_all()

    def wait(self, timeout_s: float) -> int:
        """Wait for all that was added before; returns how many of it are left if time is up."""
        with self._queue_changed:
            before = set(self._undone)
            self._queue_changed.wait_for(lambda: not before & self._undone, timeout_s)
            return len(before & self._undone)

    def close(self, timeout_s: float) -> bool:
        """End the threads after what is queued. May be called twice.

        Returns:
            Whether they ended in time; if not, they go on and end later.
        """
        with self._queue_changed:
            self._closing = True
            self._queue_changed.notify_all()
        end_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while True:
            with self._queue_changed:
                self._queue_changed.wait_for(lambda: self._todo or self._closing)
                if not self._todo:
                    return
                number, job = self._todo.popleft()
            try:
                job()
            finally:
                with self._queue_changed:
                    self._undone.discard(number)
                    self._queue_changed.notify_all()


class NoAnswerError(Exception):
    """It did not answer in time, and may still."""


def asked(call: Callable[[], T]) -> Future[T]:
    """What `call` will return, or raise: a thread of its own calls it."""
    answer = Future[T]()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # whoever waits for it is not left without an answer
            answer.set_exception(error)

    threading.Thread(target=run, name="tune_sync-answer", daemon=True).start()
    return answer


def answer_within(call: Callable[[], T], timeout_s: float) -> T:
    """What `call` returns, or raises. Nobody waits for it any longer.

    Raises:
        NoAnswerError: It takes longer.
    """
    answer = asked(call)
    try:
        return answer.result(timeout_s)
    except FutureTimeoutError:
        if answer.done():  # just now; or it is what was raised
            return answer.result()
        raise NoAnswerError(f"no answer within {timeout_s:.0f} s") from None


def is_of_exit(error: BaseException) -> bool:
    """Whether it is what Python raises where a thread is wanted while the process ends."""
    return isinstance(error, RuntimeError) and "interpreter shutdown" in str(error)
