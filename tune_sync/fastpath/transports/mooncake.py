"""Memory to memory by Mooncake's transfer engine, over several cards; control over TCP as before.

Who may write which memory is settled on the authenticated TCP connections. The engines' own
handshake asks nobody who they are: who gets to their ports, reaches all memory that is registered.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from tune_sync.fastpath import mooncake_engine
from tune_sync.fastpath.mooncake_engine import Engine, EngineMemory
from tune_sync.fastpath.tls import Tls
from tune_sync.fastpath.transport_names import MOONCAKE
from tune_sync.fastpath.transports.lanes import Lanes
from tune_sync.fastpath.transports.lending import Lender, LendingServer, Pinned
from tune_sync.fastpath.transports.mooncake_lane import MooncakeLane, MooncakeRegion
from tune_sync.fastpath.transports.rdma import LIMITS
from tune_sync.fastpath.transports.shelf import Shelf
from tune_sync.fastpath.transports.stream import Stream
from tune_sync.fastpath.transports.tcp import TcpTransport, listen
from tune_sync.fastpath.transports.tcp_peer import TcpPeer
from tune_sync.fastpath.transports.transport import Limits, Memory, Peer, Region
from tune_sync.fastpath.verbs.checks import ANY, Wish, checked_wish


class MooncakeTransport(TcpTransport):
    """Mooncake's engine between hosts that know one token.

    Whoever gets to the engines' ports is trusted, with the token or without.

    Args:
        token: Random bytes that only this run's agents have; at least 16.
        tls: Certificates for the control connections; None: no TLS.
        limits: How much at once, and how long to wait. A lane has one block under way.
        wish: Which device and address to use; all devices where it says nothing.

    Raises:
        ConfigError: The token can be guessed, a file of `tls` cannot be used, or `wish` cannot be.
    """

    name = MOONCAKE
    pins = True

    def __init__(
        self, token: bytes, *, tls: Tls | None = None, limits: Limits = LIMITS, wish: Wish = ANY
    ) -> None:
        # A lane has one block under way; others keep the links busy meanwhile.
        super().__init__(token, tls=tls, limits=replace(limits, window_bytes=1))
        self._wish = checked_wish(wish)

    def __repr__(self) -> str:
        return (
            f"MooncakeTransport(tls={self._client_tls is not None}, {self._limits}, {self._wish})"
        )

    def missing(self) -> str:
        return mooncake_engine.missing(self._wish)

    def serve(self, shelf: Shelf, host: str, port: int = 0) -> MooncakeServer:
        """As `Transport.serve`; peers without Mooncake reach it by TCP, at the same address.

        Raises:
            ConfigError: `host` is no IPv4 address that others reach.
            TransportMissingError: This host has no device that can be used.
        """
        engine = mooncake_engine.engine(host, self._wish, is_target=True)
        listener = listen(host, port)
        return MooncakeServer(shelf, listener, self._token, self._server_tls, self._limits, engine)

    def connect(self, address: str) -> Peer:
        def open_one(hello: dict[str, str]) -> Any:
            return open_stream(hello | {"by": MOONCAKE} if hello else hello)

        def make_lane(lanes: Lanes, connect: Any, on_lost: Any) -> MooncakeLane:
            return MooncakeLane(lanes, connect, on_lost, self._engine_for, self._limits)

        open_stream = self._opener(address)
        return TcpPeer(open_one, self._limits, make_lane)

    def register(self, memory: Memory) -> Region:
        """As `Transport.register`; pages of `memory` are pinned from its first transfer on."""
        return MooncakeRegion(memory)

    def _engine_for(self, stream: Stream) -> Engine:
        return mooncake_engine.engine(stream.local_host, self._wish, is_target=False)


class MooncakeServer(LendingServer):
    """Serves a shelf to peers that know the token, by an engine to those that ask for it.

    Args:
        shelf: What they may write and read.
        listener: Where they connect.
        token: What they have to know.
        tls: Wraps connections; None: they are plain.
        limits: How long to wait for them.
        engine: What moves the bytes.
    """

    by = MOONCAKE

    def __init__(
        self, shelf: Shelf, listener: socket.socket, token: bytes,
        tls: ssl.SSLContext | None, limits: Limits, engine: Engine,
    ) -> None:  # fmt: skip
        self._lends = _ByEngine(engine)
        super().__init__(shelf, listener, token, tls, limits)

    def _lender(self, stream: Stream) -> AbstractContextManager[Lender]:
        return nullcontext(self._lends)


class _ByEngine:
    def __init__(self, engine: Engine) -> None:
        self._pinned: Pinned[EngineMemory] = Pinned(lambda memory: EngineMemory(engine, memory))

    def lend(self, block: memoryview) -> dict[str, Any]:
        return self._pinned.of(block).target(block).fields()

    def take_back(self, block: memoryview) -> None:
        self._pinned.forget(block)
