"""Does one thing with the same name at most once in a while: the newest of those that wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

WORKERS_COUNT = 8


class Paced:
    """Methods may be called from any thread. Jobs keep their errors to themselves.

    The first job of a name is done by its caller, if that may wait. Others are done by a thread
    when their time has come; if another one of that name comes first, they are never done.

    Args:
        period_s: From the end of a job to the start of the next one of that name.
        clock: Monotonic seconds.
    """

    def __init__(self, period_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._period_s = period_s
        self._clock = clock
        self._waiting: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {}
        self._running: set[str] = set()
        self._next_s: dict[str, float] = {}
        self._threads_count = 0
        self._jobs_changed = threading.Condition()

    def do(
        self, name: str, job: Callable[[], None], drop: Callable[[], None], *, waits: bool = True
    ) -> None:
        """Do a job now, or have it done once its time has come; `drop` if it is never done.

        `waits`: whether the caller may be held up by the job.
        """
        with self._jobs_changed:
            comes_later = name in self._running or name in self._waiting or self._wait_s(name) > 0
            older = self._waiting.get(name)
            if comes_later or not waits:
                self._waiting[name] = (job, drop)
                self._start_thread()
                self._jobs_changed.notify_all()
            else:
                self._running.add(name)
        if older is not None:
            older[1]()
        if not comes_later and waits:
            self._run(name, job)

    def is_idle(self, name: str) -> bool:
        """Whether no job of that name waits or is under way."""
        with self._jobs_changed:
            return name not in self._waiting and name not in self._running

    def flush(self, timeout_s: float) -> bool:
        """Return when all jobs are done; False if that took longer than `timeout_s`."""
        with self._jobs_changed:
            return self._jobs_changed.wait_for(
                lambda: not self._waiting and not self._running, timeout_s
            )

    def _wait_s(self, name: str) -> float:
        return self._next_s[name] - self._clock() if name in self._next_s else 0.0

    def _run(self, name: str, job: Callable[[], None]) -> None:
        try:
            job()
        finally:
            with self._jobs_changed:
                self._running.discard(name)
                self._next_s[name] = self._clock() + self._period_s
                self._jobs_changed.notify_all()

    def _start_thread(self) -> None:
        """One more, if there is work for it. They end when nothing waits."""
        under_way_count = len(self._waiting) + len(self._running)
        if self._threads_count < min(WORKERS_COUNT, under_way_count):
            self._threads_count += 1
            threading.Thread(target=self._work, name="tune_sync-paced", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._jobs_changed:
                name = self._take()
                if name is None:
                    self._threads_count -= 1
                    return
                job, _ = self._waiting.pop(name)
                self._running.add(name)
            self._run(name, job)

    def _take(self) -> str | None:
        """Wait for a job whose time has come; None if nothing waits any more."""
        while self._waiting:
            free = {n: self._wait_s(n) for n in self._waiting if n not in self._running}
            name = min(free, key=lambda n: free[n], default=None)
            if name is not None and free[name] <= 0:
                return name
            self._jobs_changed.wait(free[name] if name is not None else None)
        return None
