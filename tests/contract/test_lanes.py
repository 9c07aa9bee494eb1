"""TCP between two sides of one process is a lane."""

from __future__ import annotations

from tests.contract.lane_contract import TransportLaneContract
from tune_sync.fastpath.transports import TcpTransport, Transport


class TestTcp(TransportLaneContract):
    def make_transport(self) -> Transport:
        return TcpTransport(b"t" * 32)
