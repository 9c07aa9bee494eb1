"""The side of RDMA that holds the memory: it lends a block of it at a time to a peer's card."""

from __future__ import annotations

import mmap
import socket
import ssl
import threading
import weakref
from collections.abc import Callable
from typing import Any

from tune_sync.errors import ConfigError, PeerLostError, SyncTimeoutError
from tune_sync.fastpath.transports import wire
from tune_sync.fastpath.transports.shelf import Shelf
from tune_sync.fastpath.transports.stream import Stream
from tune_sync.fastpath.transports.tcp_server import TcpServer
from tune_sync.fastpath.transports.transport import Limits
from tune_sync.fastpath.verbs.device import Device, Registered, address_of
from tune_sync.fastpath.verbs.endpoint import Endpoint, Window
from tune_sync.fastpath.verbs.queue_pair import QueuePair

BY_RDMA = {"by": "rdma"}
# Nothing is heard of a peer while it moves a block. It gives up after one stall; then its word, or
# the end of its connection, is on the way.
LEND_STALLS = 2


class RdmaServer(TcpServer):
    """Serves a shelf to peers that know the token, over RDMA to those that ask for it.

    Args:
        shelf: What they may write and read.
        listener: Where they connect.
        token: What they have to know.
        tls: Wraps connections; None: they are plain.
        limits: How long to wait for them.
        device: What moves the bytes.
    """

    def __init__(
        self, shelf: Shelf, listener: socket.socket, token: bytes,
        tls: ssl.SSLContext | None, limits: Limits, device: Device,
    ) -> None:  # fmt: skip
        self._device = device
        self._pinned = Pinned(device)
        super().__init__(shelf, listener, token, tls, limits)

    def _serve_blocks(self, stream: Stream, hello: dict[str, Any]) -> None:
        if not BY_RDMA.items() <= hello.items():
            super()._serve_blocks(stream, hello)
            return
        pair = QueuePair(self._device, is_target=True)
        try:
            wire.send_frame(stream, pair.endpoint.fields())
            pair.connect(Endpoint.parsed(wire.receive_frame(stream)))
            wire.send_frame(stream, {})
            while True:
                stream.set_stall_timeout(None)
                request = wire.receive_frame(stream)
                stream.set_stall_timeout(LEND_STALLS * self._limits.stall_timeout_s)
                self._lend_or_refuse(stream, pair, request)
        finally:
            pair.close()

    def _lend_or_refuse(self, stream: Stream, pair: QueuePair, request: dict[str, Any]) -> None:
        try:
            answer = self._lend(stream, pair, request)
        except (PeerLostError, SyncTimeoutError):
            raise
        except Exception as error:
            wire.send_error(stream, error)
        else:
            wire.send_frame(stream, answer)

    def _lend(self, stream: Stream, pair: QueuePair, request: dict[str, Any]) -> dict[str, Any]:
        match request:
            case {
                "do": (wire.WRITE | wire.READ) as do, "handle": str(handle),
                "offset_bytes": int(offset_bytes), "length_bytes": int(length_bytes),
            }:  # fmt: skip
                place = (bytes.fromhex(handle), offset_bytes, length_bytes)
            case _:
                raise ConfigError("the other host asks for what is not known here; use one version")
        if do == wire.READ:
            with self._shelf.reading(*place) as block:
                return self._lent(stream, pair, block, lambda: wire.digest_of(block).hex())[1]
        with self._shelf.writing(*place) as block:
            told, _ = self._lent(stream, pair, block, str)
            if told.get("digest") != wire.digest_of(block).hex():
                raise wire.damaged("written")
        return {}

    def _lent(
        self, stream: Stream, pair: QueuePair, block: memoryview, meanwhile: Callable[[], str]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Let the peer reach a block until it says that it is done.

        Returns:
            What it says, and what to answer: the digest that was made `meanwhile`.
        """
        window = self._pinned.window(block)
        try:
            wire.send_frame(stream, window.fields())
            digest = meanwhile()
            return wire.receive_frame(stream), {"digest": digest}
        except BaseException:
            pair.close()  # before the memory may be used for something else
            raise


class Pinned:
    """Memory of slots, registered when it is first lent, and as long as it is there.

    Args:
        device: What shall reach it.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._known: weakref.WeakKeyDictionary[mmap.mmap, Registered] = weakref.WeakKeyDictionary()

    def window(self, block: memoryview) -> Window:
        """What a peer needs to reach `block`, which is part of a slot.

        Raises:
            StoreFullError: This process may not pin so much.
        """
        memory = block.obj
        assert isinstance(memory, mmap.mmap)
        with self._lock:
            registered = self._known.get(memory)
            if registered is None:
                registered = self._device.register(memory, remote=True)
                self._known[memory] = registered
                weakref.finalize(memory, registered.close)
        return registered.window(address_of(block) - registered.address, len(block))
