"""Memory to memory over RDMA: one-sided writes and reads by the cards, control over TCP as before.

Who a peer is, and which memory it may reach, is settled on the authenticated TCP connections. The
bytes themselves go past them: the network between the cards can read and change them.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from tune_sync.fastpath import environment
from tune_sync.fastpath.tls import Tls
from tune_sync.fastpath.transport_names import RDMA
from tune_sync.fastpath.transports.lanes import Lanes
from tune_sync.fastpath.transports.rdma_lane import RdmaLane, RdmaRegion
from tune_sync.fastpath.transports.rdma_server import BY_RDMA, RdmaServer
from tune_sync.fastpath.transports.shelf import Shelf
from tune_sync.fastpath.transports.tcp import TcpTransport, listen
from tune_sync.fastpath.transports.tcp_peer import TcpPeer
from tune_sync.fastpath.transports.transport import Limits, Memory, Peer, Region
from tune_sync.fastpath.verbs.checks import (
    ANY,
    LEAST_LOCKED_BYTES,
    Wish,
    checked_wish,
    find_port_address,
    missing,
)
from tune_sync.fastpath.verbs.device import Device

# Each block costs a question and an answer, and the card needs nothing of the caches.
BLOCK_BYTES = 16 << 20
LIMITS = Limits(block_bytes=BLOCK_BYTES)


def wish_here(
    device: str | None, port: int | None, gid_index: int | None,
    lock_bytes: int = LEAST_LOCKED_BYTES,
) -> Wish:  # fmt: skip
    """What to use on this node: what is given, or else what the environment says here.

    Args:
        device: Its name; None: not given.
        port: Of the device, from 1.
        gid_index: In the port's table, from 0.
        lock_bytes: Memory that will be pinned.

    Raises:
        ConfigError: A number that cannot be; names it, or the variable.
    """
    if device is None:
        device = environment.text(environment.RDMA_DEVICE)
    if port is None:
        port = environment.number(environment.RDMA_PORT, None)
    if gid_index is None:
        gid_index = environment.number(environment.RDMA_GID_INDEX, None, least=0)
    return checked_wish(Wish(device, port, gid_index, lock_bytes))


class RdmaTransport(TcpTransport):
    """RDMA between hosts that know one token.

    A peer that knows the token is trusted not to write into memory after it was published: its key
    is good until the connection ends.

    Args:
        token: Random bytes that only this run's agents have; at least 16.
        tls: Certificates for the control connections; None: no TLS.
        limits: How much at once, and how long to wait. A lane has one block under way.
        wish: Which device and address to use; what fits best where it says nothing.

    Raises:
        ConfigError: The token can be guessed, a file of `tls` cannot be used, or `wish` cannot be.
    """

    name = RDMA
    pins = True

    def __init__(
        self, token: bytes, *, tls: Tls | None = None, limits: Limits = LIMITS, wish: Wish = ANY
    ) -> None:
        # A lane has one block under way; others keep the link busy meanwhile.
        super().__init__(token, tls=tls, limits=replace(limits, window_bytes=1))
        self._wish = checked_wish(wish)
        self._device_lock = threading.Lock()
        self._opened: Device | None = None

    def __repr__(self) -> str:
        return f"RdmaTransport(tls={self._client_tls is not None}, {self._limits}, {self._wish})"

    def missing(self) -> str:
        return missing(self._wish)

    def serve(self, shelf: Shelf, host: str, port: int = 0) -> RdmaServer:
        """As `Transport.serve`; peers without RDMA reach it by TCP, at the same address.

        Raises:
            TransportMissingError: This host has no device that can be used.
        """
        device = self._device()
        listener = listen(host, port)
        return RdmaServer(shelf, listener, self._token, self._server_tls, self._limits, device)

    def connect(self, address: str) -> Peer:
        device = self._device()

        def open_one(hello: dict[str, str]) -> Any:
            return open_stream(hello | BY_RDMA if hello else hello)

        def make_lane(lanes: Lanes, connect: Any, on_lost: Any) -> RdmaLane:
            return RdmaLane(lanes, connect, on_lost, device, self._limits)

        open_stream = self._opener(address)
        return TcpPeer(open_one, self._limits, make_lane)

    def register(self, memory: Memory) -> Region:
        """As `Transport.register`; `memory` has to be writable, and its pages are pinned.

        Raises:
            StoreFullError: This process may not pin so much.
            TransportMissingError: This host has no device that can be used.
        """
        return RdmaRegion(memory, self._device())

    def _device(self) -> Device:
        with self._device_lock:
            if self._opened is None:
                self._opened = Device(find_port_address(self._wish))
            return self._opened
