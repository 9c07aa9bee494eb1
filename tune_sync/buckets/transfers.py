"""`Transfers`: requests side by side, with a bound on how many bytes they hold."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

# A small object is latency: so many requests at once move 2,000 of them in a second at 20 ms each.
# More than that takes processor time from training.
AT_ONCE_COUNT = 48
# What waits or is under way; an item that is larger goes alone.
HELD_BYTES = 64 << 20


class Transfers:
    """Requests that belong to *parts*. Methods may be called from any thread, but for requests.

    Args:
        at_once_count: So many requests at most.
        held_bytes: Together they hold at most so much.
    """

    def __init__(self, at_once_count: int = AT_ONCE_COUNT, held_bytes: int = HELD_BYTES) -> None:
        self.pool = ThreadPoolExecutor(at_once_count, "tune_sync-bucket")
        self._limit_bytes = held_bytes
        self._held_bytes = 0
        self._pending_count: Counter[str] = Counter()
        self._errors: dict[str, Exception] = {}
        self._dropped: Counter[str] = Counter()
        self._changed = threading.Condition()

    def start(self, part: str, size_bytes: int, act: Callable[[], None]) -> None:
        """Make a request, once there is room for it.

        Args:
            part: What it belongs to.
            size_bytes: How much it holds.
            act: Makes it.

        Raises:
            Exception: What went wrong with an earlier request of this part; stays so.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._has_room(size_bytes))
            self._check(part)
            self._held_bytes += size_bytes
            self._pending_count[part] += 1
        begun = threading.Lock()
        try:
            self.pool.submit(self._run, part, size_bytes, act, begun)
        except BaseException:  # no more threads; the pool may have it in its queue all the same
            if begun.acquire(blocking=False):
                self._note_over(part, size_bytes, None)
            raise

    def wait(self, part: str) -> None:
        """Return when all requests of a part are done. Raises as `start` does."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending_count[part])
            del self._pending_count[part]
            self._check(part)

    def drop(self, part: str) -> None:
        """Give a part up: what did not begin does not; returns when nothing more is under way."""
        with self._changed:
            self._dropped[part] += 1
            try:
                self._changed.wait_for(lambda: not self._pending_count[part])
            finally:
                self._dropped -= Counter({part: 1})
                del self._pending_count[part]
                self._errors.pop(part, None)

    def _has_room(self, size_bytes: int) -> bool:
        return not self._held_bytes or self._held_bytes + size_bytes <= self._limit_bytes

    def _check(self, part: str) -> None:
        if part in self._errors:
            raise self._errors[part]

    def _run(
        self, part: str, size_bytes: int, act: Callable[[], None], begun: threading.Lock
    ) -> None:
        if not begun.acquire(blocking=False):
            return
        error: Exception | None = None
        try:
            if not self._dropped[part] and part not in self._errors:
                act()
        except Exception as raised:
            error = raised
        except BaseException as raised:  # nobody else would say that it is over
            error = OSError(f"a request broke off: {raised!r}")
            error.__cause__ = raised
        self._note_over(part, size_bytes, error)

    def _note_over(self, part: str, size_bytes: int, error: Exception | None) -> None:
        with self._changed:
            if error is not None:
                self._errors.setdefault(part, error)
            self._held_bytes -= size_bytes
            self._pending_count[part] -= 1
            self._changed.notify_all()
