"""The side that moves bytes past the TCP connections, into and out of memory that it is lent."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from tune_sync.errors import TuneSyncError
from tune_sync.fastpath.transports import wire
from tune_sync.fastpath.transports.lanes import Block, Lane
from tune_sync.fastpath.transports.stream import Stream


class BorrowingLane(Lane):
    """Each of its blocks is asked for, and told done, on its TCP connection."""

    @abstractmethod
    def _moved(self, stream: Stream, block: Block, lent: dict[str, Any]) -> bytes:
        """Move a block to or from what was `lent`; returns its digest."""

    def _send(self, stream: Stream, block: Block) -> None:
        wire.send_frame(stream, {
            "do": block.do, "handle": block.handle.hex(),
            "offset_bytes": block.offset_bytes, "length_bytes": block.length_bytes,
        })  # fmt: skip

    def _finish(self, stream: Stream, block: Block) -> Exception | None:
        lent = wire.receive_frame(stream)
        if (refusal := wire.raised(lent)) is not None:
            return refusal
        is_write = block.do == wire.WRITE
        digest = self._moved(stream, block, lent)
        try:
            told = ask(stream, {"digest": digest.hex() if is_write else ""})
        except TuneSyncError as error:
            if isinstance(error, ConnectionError | TimeoutError):
                raise
            return error
        is_right = is_write or digest.hex() == told.get("digest")
        return None if is_right else wire.damaged("read")


def ask(stream: Stream, fields: dict[str, Any]) -> dict[str, Any]:
    """Send `fields`; returns the answer, or raises what the peer raised."""
    wire.send_frame(stream, fields)
    return received(stream)


def received(stream: Stream) -> dict[str, Any]:
    """What comes next, or raises what the peer raised."""
    answer = wire.receive_frame(stream)
    if (refusal := wire.raised(answer)) is not None:
        raise refusal
    return answer
