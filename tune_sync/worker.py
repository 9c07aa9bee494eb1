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
        self._busy = False
        self._closing = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def add(self, job: Callable[[], None]) -> None:
        """Do a job after those added before. Returns at once."""
        with self._queue_changed:
            self._todo.append(job)
            self._queue_changed.notify_all()

    def wait_idle(self, timeout_s: float) -> int:
        """Wait until all is done; returns how many jobs are left when the time is up."""
        with self._queue_changed:
            self._queue_changed.wait_for(lambda: not self._todo and not self._busy, timeout_s)
            return len(self._todo) + self._busy

    def close(self) -> None:
        """End the thread after what is queued. May be called twice."""
        with self._queue_changed:
            self._closing = True
            self._queue_changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._queue_changed:
                self._queue_changed.wait_for(lambda: self._todo or self._closing)
                if not self._todo:
                    return
                job = self._todo.popleft()
                self._busy = True
            try:
                job()
            finally:
                with self._queue_changed:
                    self._busy = False
                    self._queue_changed.notify_all()
