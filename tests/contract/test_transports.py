"""TCP between two sides of one process behaves as a transport."""

from __future__ import annotations

import pytest

from tests.fastpath.certificates import make_certificates
from tune_sync.fastpath.transports import Limits, TcpTransport, Tls, Transport
from tune_sync.testing.transport_contract import TransportContract


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return make_certificates(tmp_path_factory.mktemp("tls"))


class TestTcp(TransportContract):
    def make_transport(self, token: bytes) -> Transport:
        return TcpTransport(token)


class TestTcpOfVersion6(TransportContract):
    host = "::1"

    def make_transport(self, token: bytes) -> Transport:
        return TcpTransport(token)


class TestTcpInSmallBlocks(TransportContract):
    """Blocks that divide nothing, more of them under way than fit."""

    def make_transport(self, token: bytes) -> Transport:
        return TcpTransport(token, limits=Limits(3, block_bytes=50_021, window_bytes=333_333))


class TestTcpWithinTls(TransportContract):
    @pytest.fixture(autouse=True)
    def use_certificates(self, certificates: Tls) -> None:
        self.tls = certificates

    def make_transport(self, token: bytes) -> Transport:
        return TcpTransport(token, tls=self.tls)
