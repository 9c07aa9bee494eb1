"""What a process has sent and its home has not confirmed: one budget, and whose failure it is."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from copy import copy
from typing import Any

from tune_sync.errors import HomeLostError

# Whoever writes a part has given it up long before so many others have failed.
FAILED_KEPT = 1000


class InFlight:
    """Chunks under way. Methods may be called from any thread.

    A chunk belongs to a *part*: an attempt at a checkpoint, or a single file. Any thread may be
    the one that waits for it; whoever goes on with the part learns of its failure.

    Args:
        limit_bytes: The budget. A larger chunk goes alone.
        wait: Returns once a sent chunk arrived; raises what went wrong, also after a time limit.
    """

    def __init__(self, limit_bytes: int, wait: Callable[[Any], None]) -> None:
        self._limit_bytes = limit_bytes
        self._wait = wait
        self._sent: deque[tuple[str, int, Any]] = deque()
        self._used_bytes = 0
        self._pending_count: Counter[str] = Counter()
        self._failed: dict[str, Exception] = {}
        self._changed = threading.Condition()

    def send(self, part: str, size_bytes: int, start: Callable[[], Any]) -> None:
        """Send a chunk once there is room for it.

        Args:
            part: What it belongs to.
            size_bytes: Its size.
            start: Sends it, and returns what `wait` needs.

        Raises:
            Exception: What went wrong with an earlier chunk of this part; stays so.
        """
        self._take_room(size_bytes)
        try:
            self._check(part)
            handle = start()
        except BaseException:
            self._give_back(size_bytes)
            raise
        with self._changed:
            self._sent.append((part, size_bytes, handle))
            self._pending_count[part] += 1
            self._changed.notify_all()  # who waits for room can wait for this now

    def flush(self, part: str) -> None:
        """Return when all chunks of a part arrived. Raises as `send` does."""
        while True:
            with self._changed:
                if not self._pending_count[part]:
                    break
                mine = next((sent for sent in self._sent if sent[0] == part), None)
                if mine is None:  # other threads wait for them
                    self._changed.wait()
                    continue
                self._sent.remove(mine)
            self._finish(*mine)
        self._check(part)

    def _take_room(self, size_bytes: int) -> None:
        while True:
            with self._changed:
                if not self._used_bytes or self._used_bytes + size_bytes <= self._limit_bytes:
                    self._used_bytes += size_bytes
                    return
                if not self._sent:  # other threads fill or wait for what takes the room
                    self._changed.wait()
                    continue
                oldest = self._sent.popleft()
            self._finish(*oldest)

    def _finish(self, part: str, size_bytes: int, handle: Any) -> None:
        try:
            self._wait(handle)
        except Exception as error:
            self._note_failed(part, copy(error))
        except BaseException as error:  # of whoever waited, who may have no part in this one
            self._note_failed(part, _unknown(part, error))
            raise
        finally:
            with self._changed:
                self._pending_count[part] -= 1
                if not self._pending_count[part]:
                    del self._pending_count[part]
            self._give_back(size_bytes)

    def _note_failed(self, part: str, error: Exception) -> None:
        with self._changed:
            self._failed.setdefault(part, error)
            if len(self._failed) > FAILED_KEPT:
                del self._failed[next(iter(self._failed))]

    def _give_back(self, size_bytes: int) -> None:
        with self._changed:
            self._used_bytes -= size_bytes
            self._changed.notify_all()

    def _check(self, part: str) -> None:
        with self._changed:
            error = self._failed.get(part)
        if error is not None:
            # What is kept was never raised: that would hold the frames it passed, and their chunks.
            again = copy(error)
            again.kept = error  # type: ignore[attr-defined]
            raise again


def _unknown(part: str, why: BaseException) -> HomeLostError:
    return HomeLostError(
        f"writing {part}: whether all bytes arrived is not known, as who waited for that was "
        f"stopped ({type(why).__name__}); report the checkpoint again"
    )
