"""A limit on the bytes that a node sends a second. Pure: no clock."""

from __future__ import annotations

from dataclasses import dataclass


class Bandwidth:
    """For one thread at a time.

    Args:
        bytes_per_s: On average no more than this; 0: no limit.
    """

    def __init__(self, bytes_per_s: int = 0) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = float("-inf")

    def take(self, size_bytes: int, now_s: float) -> float:
        """Take room for bytes that are about to be sent; returns how many seconds to wait first."""
        if not self._bytes_per_s or not size_bytes:
            return 0.0
        start_s = max(self._free_s, now_s)
        self._free_s = start_s + size_bytes / self._bytes_per_s
        return start_s - now_s


@dataclass(frozen=True, slots=True)
class Turn:
    """Bytes that may be sent from a moment on, and get there little by little.

    Attributes:
        size_bytes: How many.
        began_s: When they were asked for.
        end_s: When they may be sent.
    """

    size_bytes: int
    began_s: float
    end_s: float

    def gone_bytes(self, now_s: float) -> int:
        """What counts by now; one more than there are once they may be sent, also for none."""
        if now_s >= self.end_s:
            return self.size_bytes + 1
        return int(self.size_bytes * (now_s - self.began_s) / (self.end_s - self.began_s))
