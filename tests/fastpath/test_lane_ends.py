"""A connection whose end fails too, as that of a card that was reset: whoever waits hears of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tune_sync.errors import PeerLostError
from tune_sync.fastpath.transports import Limits, Part, Shelf, TcpTransport
from tune_sync.fastpath.transports.lanes import Block, Lane
from tune_sync.fastpath.transports.stream import Stream
from tune_sync.fastpath.transports.tcp_peer import TcpPeer
from tune_sync.testing.transport_contract import TOKEN
from tune_sync.testing.transport_pair import CountingPool

SIZE_BYTES = 16 << 20
SOON_S = 10.0


class Broken(Lane):
    """The device fails, and does not take back what it has."""

    def _send(self, stream: Stream, block: Block) -> None:
        raise PeerLostError("the card was reset; connect again")

    def _close(self, stream: Stream) -> None:
        raise OSError(5, "Input/output error")


def test_a_lane_that_cannot_be_closed_still_ends_what_it_moved(tmp_path: Path) -> None:
    transport, limits = TcpTransport(TOKEN), Limits(stream_count=1)
    server = transport.serve(Shelf(CountingPool(tmp_path)), "127.0.0.1")
    peer = TcpPeer(transport._opener(server.address), limits, Broken)
    try:
        region = transport.register(bytearray(SIZE_BYTES))
        upload = peer.reserve("k", SIZE_BYTES)
        began_s = time.monotonic()
        transfer = upload.write(region, [Part(0, 0, SIZE_BYTES)])
        with pytest.raises(PeerLostError, match="the card was reset"):
            transfer.wait(SOON_S)
        assert time.monotonic() - began_s < SOON_S
        region.close()  # nothing is under way from it any more
    finally:
        peer.close()
        server.close()
