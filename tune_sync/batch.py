"""Small files put together, to travel as one message."""

from __future__ import annotations

import mmap

from tune_sync.home import Piece


class Batch:
    """Bytes of small files in a row. Not for several threads at once.

    They lie in pages of their own, which go back to the system with the last reference. From
    Python's heap, each of the threads that copy a directory would keep what was once a batch.

    Args:
        room_bytes: How much may be added in all.

    Attributes:
        pieces: Which file is where.
        size_bytes: How much was added.
    """

    def __init__(self, room_bytes: int) -> None:
        self.pieces: list[Piece] = []
        self.size_bytes = 0
        self._room_bytes = room_bytes
        self._pages: mmap.mmap | None = None

    @property
    def data(self) -> memoryview:
        """All bytes, without a copy."""
        return memoryview(self._pages or b"")[: self.size_bytes]

    def add(self, key: str, data: bytes | bytearray) -> None:
        """Take one file."""
        start_bytes, self.size_bytes = self.size_bytes, self.size_bytes + len(data)
        self.pieces.append(Piece(key, start_bytes, len(data)))
        if data:
            self._pages = self._pages or mmap.mmap(-1, self._room_bytes)
            self._pages[start_bytes : self.size_bytes] = data
