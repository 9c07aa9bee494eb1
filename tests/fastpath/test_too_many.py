"""More peers, or messages, than a node takes at a time."""

from __future__ import annotations

import errno
import os
import resource
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tune_sync.behind.replica_intake import SLOTS_COUNT, EqualSlots
from tune_sync.errors import PeerLostError
from tune_sync.fastpath.transports import Limits, Shelf, TcpTransport, tcp_server
from tune_sync.fastpath.transports.tcp import listen
from tune_sync.fastpath.transports.tcp_server import TcpServer
from tune_sync.testing.transport_contract import TOKEN
from tune_sync.testing.transport_pair import CountingPool


def test_a_connection_too_many_is_told_on_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tcp_server, "MOST_CONNECTIONS", 1)
    transport = TcpTransport(TOKEN, limits=Limits(connect_timeout_s=20.0))
    shelf = Shelf(CountingPool(tmp_path))
    with transport.serve(shelf, "127.0.0.1") as server, transport.connect(server.address):
        for _ in range(2):
            with pytest.raises(PeerLostError, match="too many connections"):
                transport.connect(server.address)
    said = [r for r in caplog.messages if "too many connections" in r and server.address in r]
    assert len(said) == 1


class Scarce(socket.socket):
    """A listener of a process that has no descriptor left, for a while."""

    refused_count, says = 0, errno.EMFILE

    def accept(self) -> tuple[socket.socket, Any]:
        if self.refused_count < 5:
            self.refused_count += 1
            raise OSError(self.says, os.strerror(self.says))
        return super().accept()


def test_a_process_without_a_descriptor_for_a_connection_says_so_once_and_takes_it_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else its log takes ten tracebacks a second for as long as that lasts."""
    transport, shelf = TcpTransport(TOKEN), Shelf(CountingPool(tmp_path))
    listener = Scarce(fileno=listen("127.0.0.1", 0).detach())
    with TcpServer(shelf, listener, TOKEN, None, Limits()) as server:
        transport.connect(server.address).close()
    assert listener.refused_count == 5
    (said,) = caplog.messages
    assert server.address in said and "Too many open files; raise" in said and "ulimit -n" in said


@pytest.mark.parametrize(
    ("says", "messages_count"), [(errno.ENOMEM, 1), (errno.ENOBUFS, 1), (errno.ECONNABORTED, 0)]
)  # fmt: skip
def test_what_keeps_a_server_from_taking_any_is_said_and_a_peer_that_left_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, says: int, messages_count: int
) -> None:
    transport, shelf = TcpTransport(TOKEN), Shelf(CountingPool(tmp_path))
    listener = Scarce(fileno=listen("127.0.0.1", 0).detach())
    listener.says = says
    with TcpServer(shelf, listener, TOKEN, None, Limits()) as server:
        transport.connect(server.address).close()
    assert len(caplog.messages) == messages_count
    assert all(os.strerror(says) in said and server.address in said for said in caplog.messages)


def test_who_has_no_descriptor_for_a_connection_does_not_blame_the_other_host(
    tmp_path: Path,
) -> None:
    transport, shelf = TcpTransport(TOKEN), Shelf(CountingPool(tmp_path))
    with transport.serve(shelf, "127.0.0.1") as server:
        limits, taken = resource.getrlimit(resource.RLIMIT_NOFILE), list[int]()
        taken.append(os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 8, limits[1]))
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            with pytest.raises(PeerLostError, match=r"Too many open files.*ulimit -n") as caught:
                transport.connect(server.address)
        finally:
            for descriptor in taken:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert "is that host up" not in str(caught.value)
        transport.connect(server.address).close()


def test_a_connection_for_which_there_is_no_thread_ends_none_that_come_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Python says so where a container's control group has no more processes."""
    start, failed = threading.Thread.start, list[threading.Thread]()

    def may_fail(thread: threading.Thread) -> None:
        if thread.name.startswith("tune_sync-peer") and not failed:
            failed.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", may_fail)
    transport = TcpTransport(TOKEN, limits=Limits(connect_timeout_s=5.0))
    shelf = Shelf(CountingPool(tmp_path))
    with transport.serve(shelf, "127.0.0.1") as server:
        with pytest.raises(PeerLostError, match="too many connections"):
            transport.connect(server.address)
        transport.connect(server.address).close()
    assert len(failed) == 1
    (said,) = (r for r in caplog.messages if "too many connections" in r)
    assert server.address in said and "can't start new thread; raise" in said


def test_messages_that_wait_for_others_are_no_reason_to_change_settings(
    shared_memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slots = EqualSlots(shared_memory)
    try:
        taken = [slots.take(1000, wait_s=20.0) for _ in range(SLOTS_COUNT)]
        assert all(taken)
        assert slots.take(1000, wait_s=0.01) is None
    finally:
        slots.close()
    (said,) = caplog.messages
    assert "more replicas arrive at once" in said and "max_checkpoints_in_memory" not in said
