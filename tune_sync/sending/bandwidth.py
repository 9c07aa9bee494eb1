"""A limit on the bytes that a node sends a second. Pure: no clock."""

from __future__ import annotations


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
