"""Memory that goes back to the system with the last reference to it."""

from __future__ import annotations

import mmap

from tune_sync.new_pages import new_pages


class Pages:
    """Bytes in a row, in pages of their own. Not for several threads at once.

    From Python's heap, each of the threads that copy a directory would keep what it once held.

    Args:
        room_bytes: How much may be added in all.

    Attributes:
        size_bytes: How much was added.
    """

    def __init__(self, room_bytes: int) -> None:
        self.size_bytes = 0
        self._room_bytes = room_bytes
        self._map: mmap.mmap | None = None

    @property
    def data(self) -> memoryview:
        """All bytes, without a copy."""
        return memoryview(self._map or b"")[: self.size_bytes]

    def add(self, data: bytes | bytearray | memoryview) -> int:
        """Take bytes; returns where they start."""
        start_bytes, self.size_bytes = self.size_bytes, self.size_bytes + len(data)
        if data:
            self._map = self._map or new_pages(self._room_bytes)
            self._map[start_bytes : self.size_bytes] = data
        return start_bytes
