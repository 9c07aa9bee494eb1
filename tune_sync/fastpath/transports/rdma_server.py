"""The side of RDMA that holds the memory: it lends a block of it at a time to a peer's card."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tune_sync.errors import TuneSyncError
from tune_sync.fastpath.transport_names import RDMA
from tune_sync.fastpath.transports import wire
from tune_sync.fastpath.transports.lending import Lender, LendingServer, Pinned
from tune_sync.fastpath.transports.shelf import Shelf
from tune_sync.fastpath.transports.stream import Stream
from tune_sync.fastpath.transports.transport import Limits
from tune_sync.fastpath.verbs.device import Device, VerbsMemory, address_of
from tune_sync.fastpath.verbs.endpoint import Endpoint
from tune_sync.fastpath.verbs.queue_pair import QueuePair

BY_RDMA = {"by": RDMA}


class RdmaServer(LendingServer):
    """Serves a shelf to peers that know the token, over RDMA to those that ask for it.

    Args:
        shelf: What they may write and read.
        listener: Where they connect.
        token: What they have to know.
        tls: Wraps connections; None: they are plain.
        limits: How long to wait for them.
        device: What moves the bytes.
    """

    by = RDMA

    def __init__(
        self, shelf: Shelf, listener: socket.socket, token: bytes,
        tls: ssl.SSLContext | None, limits: Limits, device: Device,
    ) -> None:  # fmt: skip
        self._device = device
        self._pinned = Pinned(lambda memory: device.register(memory, remote=True))
        super().__init__(shelf, listener, token, tls, limits)

    @contextmanager
    def _lender(self, stream: Stream) -> Iterator[Lender]:
        try:
            pair = QueuePair(self._device, is_target=True)
        except TuneSyncError as error:
            wire.send_error(stream, error)
            raise
        try:
            wire.send_frame(stream, pair.endpoint.fields())
            pair.connect(Endpoint.parsed(wire.receive_frame(stream)))
            yield _ByPair(pair, self._pinned)
        finally:
            pair.close()


class _ByPair:
    def __init__(self, pair: QueuePair, pinned: Pinned[VerbsMemory]) -> None:
        self._pair = pair
        self._pinned = pinned

    def lend(self, block: memoryview) -> dict[str, Any]:
        registered = self._pinned.of(block)
        return registered.window(address_of(block) - registered.address, len(block)).fields()

    def take_back(self, block: memoryview) -> None:
        self._pair.close()
