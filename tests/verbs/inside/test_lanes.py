"""RDMA between two sides of one process is a lane."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.contract.lane_contract import TransportLaneContract
from tune_sync.behind.replica_lane import ReplicaLane
from tune_sync.fastpath.transports import RdmaTransport, Transport


class TestRdma(TransportLaneContract):
    def make_transport(self) -> Transport:
        return RdmaTransport(b"t" * 32)

    @contextmanager
    def opened(self, root: Path) -> Iterator[ReplicaLane]:
        with super().opened(root) as lane:
            assert lane.name == "rdma"
            yield lane
