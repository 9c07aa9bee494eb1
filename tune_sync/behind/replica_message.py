"""What is said beside the bytes of a replica: where they belong. Plain JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from tune_sync.errors import DamagedError
from tune_sync.homes.home import Piece

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Message:
    """Where bytes belong.

    Attributes:
        pieces: Small files that lie in them one after the other, or the one file they are of.
        at_bytes: Of a chunk of that one file: where it starts there. None: `pieces` say all.
    """

    pieces: tuple[Piece, ...]
    at_bytes: int | None = None

    @classmethod
    def of_chunk(cls, key: str, at_bytes: int, length_bytes: int) -> Message:
        """A chunk of one file."""
        return cls((Piece(key, 0, length_bytes),), at_bytes)

    @classmethod
    def of_batch(cls, pieces: Sequence[Piece]) -> Message:
        """Small files."""
        return cls(tuple(pieces))

    def to_json(self) -> bytes:
        """For another node."""
        pieces = [[p.key, p.offset_bytes, p.length_bytes] for p in self.pieces]
        return json.dumps({"pieces": pieces, "at_bytes": self.at_bytes}).encode()

    @classmethod
    def from_json(cls, data: bytes, length_bytes: int) -> Message:
        """From another node.

        Args:
            data: What it sent.
            length_bytes: How many bytes came with it.

        Raises:
            DamagedError: It is no such message, or speaks of bytes that did not come.
        """
        try:
            body = json.loads(data)
            pieces = tuple(Piece(str(key), int(at), int(size)) for key, at, size in body["pieces"])
            at_bytes = None if body["at_bytes"] is None else int(body["at_bytes"])
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(
                f"what came beside bytes of a replica says nothing: {error}"
            ) from error
        numbers = [n for p in pieces for n in (p.offset_bytes, p.length_bytes)]
        ends = [p.offset_bytes + p.length_bytes for p in pieces]
        is_sound = min([*numbers, at_bytes or 0]) >= 0 and max(ends, default=0) <= length_bytes
        if not pieces or not is_sound or (at_bytes is not None and len(pieces) != 1):
            raise DamagedError("what came with bytes of a replica does not fit to them")
        return cls(pieces, at_bytes)
