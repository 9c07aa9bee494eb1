"""Does one thing with the same name at most once in a while: the newest of those that wait."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

WORKERS_COUNT = 8
# So much may be held by what is not done; who brings more waits, as nothing else bounds it.
HELD_BYTES = 256 << 20


@dataclass(slots=True)
class _Job:
    do: Callable[[], None]
    drop: Callable[[], object]
    size_bytes: int


class Paced:
    """Methods may be called from any thread. Jobs keep their errors to themselves.

    The first job of a name is done by its caller, if that may wait. Others are done by a thread
    when their time has come; if another one of that name comes first, they are never done.

    Args:
        period_s: From the end of a job to the start of the next one of that name.
        clock: Monotonic seconds.
        held_bytes: How much those that are not done may hold.
    """

    def __init__(
        self, period_s: float, clock: Callable[[], float] = time.monotonic,
        held_bytes: int = HELD_BYTES,
    ) -> None:  # fmt: skip
        self._period_s = period_s
        self._clock = clock
        self._most_bytes, self._held_bytes = held_bytes, 0
        self._waiting: dict[str, _Job] = {}
        self._running: set[str] = set()
        self._next_s: dict[str, float] = {}
        # When, in which order, and the name: of each that waits and is not under way; others stay.
        self._due: list[tuple[float, int, str]] = []
        self._numbers = itertools.count()
        self._ended_count = 0
        self._threads_count = 0
        self._jobs_changed = threading.Condition()

    def do(
        self, name: str, job: Callable[[], None], drop: Callable[[], object] = lambda: None, *,
        waits: bool = True, size_bytes: int = 0,
    ) -> None:  # fmt: skip
        """Do a job now, or have it done once its time has come; `drop` if it is never done.

        Args:
            name: Of what it is done with.
            job: Does it.
            drop: Its errors are nobody's: what it cannot remove is swept later.
            waits: Whether the caller may be held up by the job.
            size_bytes: What it holds. Too much of that holds the caller up all the same.

        Raises:
            RuntimeError: There is no thread for it; it is not done.
        """
        with self._jobs_changed:
            if size_bytes:
                self._jobs_changed.wait_for(lambda: self._has_room(name, size_bytes))
            comes_later = name in self._running or name in self._waiting or self._wait_s(name) > 0
            older = self._waiting.get(name)
            if comes_later or not waits:
                self._add(name, _Job(job, drop, size_bytes))
            else:
                self._running.add(name)
        if older is not None:
            with suppress(Exception):
                older.drop()
        if not comes_later and waits:
            self._run(name, job)

    def is_idle(self, name: str) -> bool:
        """Whether no job of that name waits or is under way."""
        with self._jobs_changed:
            return name not in self._waiting and name not in self._running

    def flush(self, timeout_s: float) -> bool:
        """Return when all jobs are done; False if none of them ended for `timeout_s`."""
        with self._jobs_changed:
            while self._waiting or self._running:
                has_moved = partial(self._has_moved, self._ended_count)
                if not self._jobs_changed.wait_for(has_moved, timeout_s):
                    return False
        return True

    def _has_moved(self, ended_count: int) -> bool:
        return self._ended_count != ended_count

    def _wait_s(self, name: str) -> float:
        return self._next_s[name] - self._clock() if name in self._next_s else 0.0

    def _has_room(self, name: str, size_bytes: int) -> bool:
        older = self._waiting.get(name)
        others_bytes = self._held_bytes - (older.size_bytes if older is not None else 0)
        return not others_bytes or others_bytes + size_bytes <= self._most_bytes

    def _add(self, name: str, job: _Job) -> None:
        self._start_thread(is_new=name not in self._waiting)
        older = self._waiting.get(name)
        if older is not None:
            self._held_bytes -= older.size_bytes
        elif name not in self._running:
            self._note_due(name)
        self._waiting[name] = job
        self._held_bytes += job.size_bytes
        self._jobs_changed.notify_all()

    def _note_due(self, name: str) -> None:
        heapq.heappush(self._due, (self._next_s.get(name, 0.0), next(self._numbers), name))

    def _run(self, name: str, job: Callable[[], None], size_bytes: int = 0) -> None:
        try:
            job()
        finally:
            with self._jobs_changed:
                self._running.discard(name)
                self._held_bytes -= size_bytes
                self._ended_count += 1
                if self._period_s:
                    self._next_s[name] = self._clock() + self._period_s
                if name in self._waiting:
                    self._note_due(name)
                self._jobs_changed.notify_all()

    def _start_thread(self, *, is_new: bool) -> None:
        """One more, if there is work for it. They end when nothing waits."""
        under_way_count = len(self._waiting) + len(self._running) + is_new
        if self._threads_count < min(WORKERS_COUNT, under_way_count):
            thread = threading.Thread(target=self._work, name="tune_sync-paced", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads; those that there are do it
                if not self._threads_count:
                    raise
                return
            self._threads_count += 1

    def _work(self) -> None:
        while True:
            with self._jobs_changed:
                name = self._take()
                if name is None:
                    self._threads_count -= 1
                    return
                job = self._waiting.pop(name)
                self._running.add(name)
            self._run(name, job.do, job.size_bytes)

    def _take(self) -> str | None:
        """Wait for a job whose time has come; None if nothing waits any more."""
        while self._waiting:
            while self._due and not self._may_run(self._due[0][2]):
                heapq.heappop(self._due)
            wait_s = self._due[0][0] - self._clock() if self._due else None
            if wait_s is not None and wait_s <= 0:
                return heapq.heappop(self._due)[2]
            self._jobs_changed.wait(wait_s)
        return None

    def _may_run(self, name: str) -> bool:
        return name in self._waiting and name not in self._running
