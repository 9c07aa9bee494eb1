"""Which bytes of a slot are there. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Coverage:
    """A set of bytes, as ranges in order that neither touch nor overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start_bytes: int, end_bytes: int) -> None:
        """Say that the bytes from `start_bytes` to before `end_bytes` are there."""
        if start_bytes >= end_bytes:
            return
        first = bisect_left(self._ends, start_bytes)
        last = bisect_right(self._starts, end_bytes)
        if first < last:
            start_bytes = min(start_bytes, self._starts[first])
            end_bytes = max(end_bytes, self._ends[last - 1])
        self._starts[first:last] = [start_bytes]
        self._ends[first:last] = [end_bytes]

    def remove(self, start_bytes: int, end_bytes: int) -> None:
        """Say that they are not."""
        if start_bytes >= end_bytes:
            return
        first = bisect_right(self._ends, start_bytes)
        last = bisect_left(self._starts, end_bytes)
        if first >= last:
            return
        kept = [(self._starts[first], start_bytes), (end_bytes, self._ends[last - 1])]
        kept = [(start, end) for start, end in kept if start < end]
        self._starts[first:last] = [start for start, _ in kept]
        self._ends[first:last] = [end for _, end in kept]

    def gap(self, size_bytes: int) -> tuple[int, int] | None:
        """The first range below `size_bytes` that is missing, or None."""
        start = 0
        if self._starts and self._starts[0] == 0:
            start = self._ends[0]
            following = self._starts[1:2]
        else:
            following = self._starts[:1]
        end = min([*following, size_bytes])
        return (start, end) if start < size_bytes else None
