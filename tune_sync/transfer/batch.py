"""Small files put together, to travel as one message."""

from __future__ import annotations

from tune_sync.homes.home import Piece
from tune_sync.transfer.pages import Pages


class Batch:
    """Bytes of small files in a row. Not for several threads at once.

    Args:
        room_bytes: How much may be added in all.

    Attributes:
        pieces: Which file is where.
    """

    def __init__(self, room_bytes: int) -> None:
        self.pieces: list[Piece] = []
        self._pages = Pages(room_bytes)

    @property
    def data(self) -> memoryview:
        """All bytes, without a copy."""
        return self._pages.data

    @property
    def size_bytes(self) -> int:
        """How much was added."""
        return self._pages.size_bytes

    def add(self, key: str, data: bytes | bytearray | memoryview) -> None:
        """Take one file."""
        self.pieces.append(Piece(key, self._pages.add(data), len(data)))
