from __future__ import annotations

import logging

import pytest

from tune_sync.errors import ConfigError, TransportMissingError
from tune_sync.fastpath.transports import OBJECT_STORE, TcpTransport, Transport, choose

TCP = TcpTransport(b"a token of some bytes")


class NoDevice(TcpTransport):
    """Stands for a transport whose hardware is not here."""

    name = "rdma"

    def missing(self) -> str:
        return "no device below /sys/class/infiniband"


RDMA: Transport = NoDevice(b"a token of some bytes")


def test_auto_takes_the_first_that_works_and_names_what_did_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        assert choose("auto", [TCP, RDMA]).transport is TCP
        assert not [r for r in caplog.records if r.levelno > logging.INFO]
        choice = choose("auto", [RDMA, TCP])
    assert (choice.name, choice.transport) == ("tcp", TCP)
    assert choice.fallback_reason == "rdma: no device below /sys/class/infiniband"
    assert "'auto' was asked for; 'tcp' is used (rdma: no device" in caplog.text


def test_a_named_one_falls_back_to_the_others_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert choose("rdma", [TCP, RDMA]).name == "tcp"
    assert "'rdma' was asked for; 'tcp' is used (rdma: no device" in caplog.text
    choice = choose("rdma", [RDMA])
    assert (choice.name, choice.transport) == (OBJECT_STORE, None) and choice.fallback_reason


def test_a_required_one_fails_instead(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TransportMissingError, match="'rdma' cannot be used here: rdma: no device"):
        choose("rdma", [RDMA, TCP], required=True)
    with pytest.raises(TransportMissingError, match="'auto'"):
        choose("auto", [RDMA], required=True)
    assert choose("auto", [RDMA, TCP], required=True).name == "tcp"
    assert choose("tcp", [RDMA, TCP], required=True).fallback_reason == ""


def test_the_object_store_is_always_there() -> None:
    assert choose(OBJECT_STORE, []).transport is None
    assert choose("auto", []).name == OBJECT_STORE


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'auto', 'tcp', 'object_store'"):
        choose("carrier pigeon", [TCP])
