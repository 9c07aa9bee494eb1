"""When what could not be sent is tried again, and whether sending gets on. Pure: no I/O, no clock.

What fails makes way for others until its pause is over. A try gets on only where it comes further
than all earlier ones of its attempt: else one that fails for ever would look as if it moved.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Tried:
    """One attempt.

    Attributes:
        at_bytes: How far the try is that runs, or was the last.
        furthest_bytes: How far any of them came.
        began_s: When that try began.
        failed_count: How many have failed.
        until_s: It makes way until then.
        was_lifted: Its pause was cut short once, as another was stored.
    """

    at_bytes: int = 0
    furthest_bytes: int = 0
    began_s: float = 0.0
    failed_count: int = 0
    until_s: float = float("-inf")
    was_lifted: bool = False


class Retries:
    """One node's. For one thread at a time; moments are those of one monotonic clock.

    Args:
        first_pause_s, longest_pause_s: After the first failure, and after many.
        now_s: The moment.

    Attributes:
        moved_bytes: Grows as sending gets on; no exact count.
        moved_s: When it grew last.
    """

    def __init__(self, first_pause_s: float, longest_pause_s: float, now_s: float) -> None:
        self._first_pause_s, self._longest_pause_s = first_pause_s, longest_pause_s
        self._tried: dict[str, _Tried] = {}
        self.moved_bytes, self.moved_s = 0, now_s

    def begin(self, attempt: str, now_s: float) -> None:
        """A try begins."""
        tried = self._tried.setdefault(attempt, _Tried())
        tried.at_bytes, tried.began_s = 0, now_s

    def goes(self, attempt: str, size_bytes: int, now_s: float) -> None:
        """So many bytes more of it are read, or on their way."""
        tried = self._tried.setdefault(attempt, _Tried())
        tried.at_bytes += size_bytes
        if tried.at_bytes > tried.furthest_bytes:
            self.moved_bytes += tried.at_bytes - tried.furthest_bytes
            tried.furthest_bytes, self.moved_s = tried.at_bytes, now_s

    def failed(self, attempt: str, now_s: float) -> None:
        """It could not be sent: it makes way, for no less time than it took from the others."""
        tried = self._tried.setdefault(attempt, _Tried())
        tried.failed_count += 1
        pause_s = self._first_pause_s * 2.0 ** min(tried.failed_count - 1, 30)
        took_s = now_s - tried.began_s
        tried.until_s = now_s + min(self._longest_pause_s, max(pause_s, took_s))

    def stored(self, attempt: str, now_s: float) -> None:
        """It was sent. So the destination answers, and the others need not wait any longer.

        Each of them once: what fails again though others are stored fails for its own sake.
        """
        self.forget(attempt)
        self.moved_bytes, self.moved_s = self.moved_bytes + 1, now_s
        for tried in self._tried.values():
            if not tried.was_lifted and tried.until_s > now_s:
                tried.until_s, tried.was_lifted = now_s, True

    def forget(self, attempt: str) -> None:
        """It is not tried any more."""
        self._tried.pop(attempt, None)

    def paused(self, now_s: float) -> set[str]:
        """What makes way just now."""
        return {attempt for attempt, tried in self._tried.items() if tried.until_s > now_s}

    def wait_s(self, now_s: float, longest_s: float) -> float:
        """How long until the next pause is over, if that is sooner than `longest_s`."""
        waits_s = [t.until_s - now_s for t in self._tried.values() if t.until_s > now_s]
        return min([longest_s, *waits_s])
