"""A thread that does jobs one after the other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Worker:
    """Jobs must not raise. Methods may be called from any thread.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._todo: deque[Callable[[], None]] = deque()
        self._queue_changed = threading.Condition()
        self._added_count = 0
        self._done_count = 0
        self._closing = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def add(self, job: Callable[[], None]) -> None:
        """Do a job after those added before. Returns at once."""
        with self._queue_changed:
            self._todo.append(job)
            self._added_count += 1
            self._queue_changed.notify_all()

    def wait(self, timeout_s: float) -> int:
        """Wait for all that was added before; returns how many of it are left if time is up."""
        with self._queue_changed:
            upto = self._added_count
            self._queue_changed.wait_for(lambda: self._done_count >= upto, timeout_s)
            return max(0, upto - self._done_count)

    def close(self, timeout_s: float) -> bool:
        """End the thread after what is queued. May be called twice.

        Returns:
            Whether it ended in time; if not, it goes on and ends later.
        """
        with self._queue_changed:
            self._closing = True
            self._queue_changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while True:
            with self._queue_changed:
                self._queue_changed.wait_for(lambda: self._todo or self._closing)
                if not self._todo:
                    return
                job = self._todo.popleft()
            try:
                job()
            finally:
                with self._queue_changed:
                    self._done_count += 1
                    self._queue_changed.notify_all()
