"""The side of RDMA that writes and reads the memory of another host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from tune_sync.fastpath.transports import wire
from tune_sync.fastpath.transports.borrowing import BorrowingLane, ask, received
from tune_sync.fastpath.transports.lanes import Block, Lanes
from tune_sync.fastpath.transports.stream import Stream
from tune_sync.fastpath.transports.transport import Limits, Memory, Region
from tune_sync.fastpath.verbs.device import Device, address_of
from tune_sync.fastpath.verbs.endpoint import Endpoint, Window
from tune_sync.fastpath.verbs.queue_pair import Move, QueuePair


class RdmaRegion(Region):
    """Memory of this process, pinned."""

    def __init__(self, memory: Memory, device: Device) -> None:
        super().__init__(memory)
        try:
            self.registered = device.register(self.view, remote=False)
        except BaseException:
            super().close()
            raise

    def close(self) -> None:
        self.registered.close()
        super().close()


class RdmaLane(BorrowingLane):
    """A queue pair, and the TCP connection on which each of its blocks is asked for and told done.

    Args:
        lanes: Where its blocks come from.
        connect: Opens the TCP connection.
        on_lost: Told why it ended, if it was not cut here.
        device: What moves the bytes.
        limits: How long to wait.
    """

    def __init__(
        self,
        lanes: Lanes,
        connect: Callable[[], Stream],
        on_lost: Callable[[Exception], None],
        device: Device,
        limits: Limits,
    ) -> None:
        super().__init__(lanes, lambda: self._paired(connect()), on_lost)
        self._device = device
        self._stall_timeout_s = limits.stall_timeout_s
        self._pair: QueuePair | None = None

    def _paired(self, stream: Stream) -> Stream:
        with contextlib.ExitStack() as undo:
            undo.callback(stream.close)
            there = received(stream)
            pair = QueuePair(self._device)
            undo.callback(pair.close)
            pair.connect(Endpoint.parsed(there))
            ask(stream, pair.endpoint.fields())
            undo.pop_all()
        self._pair = pair
        return stream

    def _moved(self, stream: Stream, block: Block, lent: dict[str, Any]) -> bytes:
        assert self._pair is not None and isinstance(block.region, RdmaRegion)
        local, is_write = block.region.registered, block.do == wire.WRITE
        here_bytes = address_of(block.view) - local.address
        move = Move(local, here_bytes, Window.parsed(lent), 0, block.length_bytes, is_write)
        self._pair.start(move)
        self._pair.push()
        digest = wire.digest_of(block.view) if is_write else b""  # while the card reads it, too
        self._pair.wait(move, self._stall_timeout_s, lambda: not self.is_cut, stream.fileno())
        return digest or wire.digest_of(block.view)

    def _close(self, stream: Stream) -> None:
        pair, self._pair = self._pair, None
        if pair is not None:
            pair.close()
        super()._close(stream)
