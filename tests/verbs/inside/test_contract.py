"""RDMA between two sides of one process behaves as a transport."""

from __future__ import annotations

from pathlib import Path

import pytest

from tune_sync.fastpath.transports import Limits, RdmaTransport, TcpTransport, Transport
from tune_sync.fastpath.verbs.ports import counters
from tune_sync.testing.transport_contract import TOKEN, TransportContract

MIB = 1 << 20
PACKET_BYTES = 4096


class TestRdma(TransportContract):
    def make_transport(self, token: bytes) -> Transport:
        return RdmaTransport(token)

    def test_the_device_moves_the_bytes(self, tmp_path: Path) -> None:
        before = counters("rxe0")["hw_counters/rcvd_pkts"]
        with self.pair(tmp_path) as pair:
            pair.put("k", bytes(8 * MIB))
            written = counters("rxe0")["hw_counters/rcvd_pkts"]
            assert written - before >= 8 * MIB // PACKET_BYTES
            assert pair.get("k") == bytes(8 * MIB)
            assert counters("rxe0")["hw_counters/rcvd_pkts"] - written >= 8 * MIB // PACKET_BYTES

    def test_a_peer_without_rdma_is_served_by_tcp(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair:
            with TcpTransport(TOKEN).connect(pair.server.address) as plain:
                pair.put("k", b"abc", plain)
                assert pair.get("k", plain) == b"abc"
            assert pair.get("k") == b"abc"


class InSmallBlocks(TransportContract):
    """Blocks that divide nothing, more of them than there are lanes."""

    def make_transport(self, token: bytes) -> Transport:
        return RdmaTransport(token, limits=Limits(3, block_bytes=1_000_003))


# All of the contract again would take a minute, and most of it moves one block.
@pytest.mark.parametrize(
    "name",
    [
        "bytes_written_are_the_bytes_held", "bytes_held_are_the_bytes_read",
        "reads_and_writes_do_not_wait_for_each_other", "after_a_cancel_no_byte_moves_here",
        "after_a_cancel_the_bytes_may_be_written_again", "a_wait_has_its_deadline",
        "a_server_that_ends_is_noticed_by_all", "a_peer_that_ends_frees_what_it_wrote",
    ],
)  # fmt: skip
def test_small_blocks_behave_as_large_ones(name: str, tmp_path: Path) -> None:
    getattr(InSmallBlocks(), f"test_{name}")(tmp_path)
