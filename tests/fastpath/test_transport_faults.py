"""TCP where what passes is changed, stopped or ended, and where strangers knock."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fastpath.certificates import make_certificates
from tests.fastpath.relay import TO_CLIENT, TO_SERVER, Relay, flip_after
from tune_sync.errors import (
    ConfigError,
    DamagedError,
    NotWholeError,
    PeerLostError,
    PeerRefusedError,
    SyncTimeoutError,
)
from tune_sync.fastpath.transports import Limits, Part, Peer, Shelf, TcpTransport, Tls, Upload
from tune_sync.fastpath.transports.wire import MAGIC
from tune_sync.testing.transport_contract import TOKEN, TransportContract
from tune_sync.testing.transport_pair import CountingPool, Pair, wait_until

MIB = 1 << 20
# Longer than a busy machine lets a process stand still.
SHORT = Limits(2, block_bytes=MIB, window_bytes=2 * MIB, stall_timeout_s=8, connect_timeout_s=8)
# Where a limit is not what a test is about.
LONG = replace(SHORT, stall_timeout_s=60, connect_timeout_s=60)


class LimitedTcp(TransportContract):
    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def make_transport(self, token: bytes) -> TcpTransport:
        return TcpTransport(token, limits=self._limits)


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    with LimitedTcp(getattr(request, "param", LONG)).pair(tmp_path) as made:
        yield made


@pytest.fixture
def relay(pair: Pair) -> Iterator[Relay]:
    with Relay(pair.server.address) as made:
        yield made


def connect(relay: Relay, limits: Limits = LONG) -> Peer:
    return TcpTransport(TOKEN, limits=limits).connect(relay.address)


def write(upload: Upload, data: bytes, *, wait_s: float = 60) -> None:
    with TcpTransport(TOKEN).register(bytearray(data)) as region:
        upload.write(region, [Part(0, 0, len(data))]).wait(wait_s)


def test_a_bit_that_changes_on_the_way_there_is_found(pair: Pair, relay: Relay) -> None:
    relay.harm = flip_after(TO_SERVER, 3 * MIB)
    with connect(relay) as peer, peer.reserve("k", 8 * MIB) as upload:
        with pytest.raises(DamagedError, match="send all of it again"):
            write(upload, bytes(8 * MIB))
        with pytest.raises(NotWholeError, match="missing"):
            upload.publish()
        assert pair.held("k") is None
        write(upload, bytes(8 * MIB))
        upload.publish()
    assert pair.held("k") == bytes(8 * MIB)


def test_a_bit_that_changes_on_the_way_back_is_found(pair: Pair, relay: Relay) -> None:
    relay.harm = flip_after(TO_CLIENT, 3 * MIB)
    pair.hold("k", bytes(8 * MIB))
    with connect(relay) as peer:
        with pytest.raises(DamagedError, match="send all of it again"):
            pair.get("k", peer)
        assert pair.get("k", peer) == bytes(8 * MIB)


def test_a_bit_that_changes_here_while_it_is_sent_is_found(pair: Pair, relay: Relay) -> None:
    data, stop = bytearray(8 * MIB), time.monotonic() + 60
    found = False
    with connect(relay) as peer, TcpTransport(TOKEN).register(data) as region:
        while not found and time.monotonic() < stop:
            with peer.reserve("k", len(data)) as upload:
                transfer = upload.write(region, [Part(0, 0, len(data))])
                while not transfer.is_over:
                    for at in range(0, len(data), 65_536):
                        data[at] ^= 1
                try:
                    transfer.wait(60)
                except DamagedError:
                    found = True
    assert found


def test_a_stall_is_an_error_in_time_and_nothing_of_it_is_seen(pair: Pair, relay: Relay) -> None:
    peer = connect(relay, SHORT)
    upload = peer.reserve("k", 16 * MIB)
    write(upload, bytes(16 * MIB))
    relay.may_pass.clear()
    started_s = time.monotonic()
    with pytest.raises(SyncTimeoutError, match=r"8 s; try again"):
        write(upload, bytes(16 * MIB))
    with pytest.raises((SyncTimeoutError, PeerLostError)):
        upload.publish()
    upload.drop()
    peer.close()
    assert time.monotonic() - started_s < LONG.stall_timeout_s
    relay.may_pass.set()
    wait_until(lambda: pair.pool.used_bytes == 0)
    assert pair.held("k") is None


def test_a_stall_that_is_shorter_is_only_slow(pair: Pair, relay: Relay) -> None:
    with connect(relay) as peer, peer.reserve("k", 16 * MIB) as upload:
        with TcpTransport(TOKEN).register(bytearray(16 * MIB)) as region:
            transfer = upload.write(region, [Part(0, 0, 16 * MIB)] * 4)
            relay.may_pass.clear()
            time.sleep(0.5)
            relay.may_pass.set()
            transfer.wait(60)
        upload.publish()
    assert pair.held("k") == bytes(16 * MIB)


def test_connections_that_end_are_an_error_at_once(pair: Pair, relay: Relay) -> None:
    peer = connect(relay)
    upload = peer.reserve("k", 16 * MIB)
    write(upload, bytes(16 * MIB))  # the streams are open
    with TcpTransport(TOKEN).register(bytearray(16 * MIB)) as region:
        relay.may_pass.clear()  # or it might be over before they end
        transfer = upload.write(region, [Part(0, 0, 16 * MIB)] * 20)
        relay.end_all()
        with pytest.raises(PeerLostError, match="connect again"):
            transfer.wait(60)
    relay.may_pass.set()
    wait_until(lambda: pair.pool.used_bytes == 0)
    with pytest.raises(PeerLostError):
        peer.find("k")
    pair.put("k", b"again", connect(relay))
    assert pair.held("k") == b"again"


def test_a_cancel_does_not_wait_for_a_link_that_stands_still(pair: Pair, relay: Relay) -> None:
    transport = TcpTransport(TOKEN, limits=Limits(2, stall_timeout_s=60))
    with transport.connect(relay.address) as peer:
        held = pair.hold("k", b"\1" * 16 * MIB)
        assert pair.get("k", peer)  # the streams are open
        back = bytearray(16 * MIB)
        relay.may_pass.clear()
        with transport.register(back) as region:
            transfer = peer.read(held, region, [Part(0, 0, len(back))])
            time.sleep(0.2)
            started_s = time.monotonic()
            transfer.cancel()
            assert time.monotonic() - started_s < 20
        seen = bytes(back)
        relay.may_pass.set()
        time.sleep(0.2)
        assert bytes(back) == seen
        assert pair.get("k", peer) == b"\1" * 16 * MIB


def test_a_cancel_does_not_wait_for_streams_that_are_not_open_yet(pair: Pair, relay: Relay) -> None:
    transport = TcpTransport(TOKEN, limits=Limits(2, stall_timeout_s=60))
    with transport.connect(relay.address) as peer, transport.register(bytearray(9)) as region:
        held = pair.hold("k", bytes(9))
        relay.may_pass.clear()
        transfer = peer.read(held, region, [Part(0, 0, 9)])
        time.sleep(0.2)
        started_s = time.monotonic()
        transfer.cancel()
        assert time.monotonic() - started_s < 20
        relay.may_pass.set()
        assert pair.get("k", peer) == bytes(9)


def test_no_more_than_the_window_is_under_way(pair: Pair, relay: Relay) -> None:
    answers, sent = threading.Event(), list[int]()  # several threads of the relay add to it

    def hold_answers(direction: str, data: bytes) -> bytes:
        if direction == TO_CLIENT:
            answers.wait()
        else:
            sent.append(len(data))
        return data

    with connect(relay) as peer, peer.reserve("k", 16 * MIB) as upload:
        write(upload, bytes(16 * MIB))
        relay.harm = hold_answers
        with TcpTransport(TOKEN).register(bytearray(16 * MIB)) as region:
            transfer = upload.write(region, [Part(0, 0, 16 * MIB)])
            window_bytes = SHORT.stream_count * SHORT.window_bytes
            wait_until(lambda: sum(sent) >= window_bytes)
            time.sleep(0.5)
            assert sum(sent) < window_bytes + MIB
            answers.set()
            transfer.wait(60)


def test_the_token_is_never_sent(pair: Pair, relay: Relay) -> None:
    seen = bytearray()

    def look(direction: str, data: bytes) -> bytes:
        seen.extend(data)
        return data

    relay.harm = look
    with connect(relay) as peer:
        pair.put("k", b"plain bytes", peer)
    assert MAGIC in seen and b"plain bytes" in seen
    assert TOKEN not in seen


def test_an_impostor_that_does_not_know_the_token_gets_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        address = f"127.0.0.1:{impostor.getsockname()[1]}"
        code = (
            "import sys; from tune_sync.fastpath.transports import TcpTransport\n"
            f"TcpTransport({TOKEN!r}).connect({address!r})\n"
        )
        child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        connection, _ = impostor.accept()
        connection.sendall(MAGIC + bytes(32))
        connection.recv(len(MAGIC) + 64, socket.MSG_WAITALL)
        connection.sendall(b"+" + bytes(32))
        assert connection.recv(1) == b""
        _, printed = child.communicate(timeout=250)
    assert "PeerRefusedError" in printed and "does not know the token" in printed


@pytest.mark.parametrize("pair", [SHORT], indirect=True)
@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HTTP/1.1\r\n\r\n" + b"x" * 200, MAGIC, MAGIC + bytes(64), os.urandom(300)],
    ids=["nothing", "HTTP", "half", "a wrong proof", "noise"],
)
def test_strangers_are_turned_away_before_anything_is_looked_at(
    pair: Pair, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    pair.hold("k", b"kept")
    host, port = pair.server.address.split(":")
    with caplog.at_level(logging.DEBUG), socket.create_connection((host, int(port))) as knock:
        knock.sendall(sent)
        knock.settimeout(60)
        answer = b""
        try:
            while data := knock.recv(1000):
                answer += data
        except ConnectionResetError:
            pass
    assert len(answer) <= len(MAGIC) + 32 + 1
    assert pair.get("k") == b"kept"


def authenticated(pair: Pair) -> socket.socket:
    """A connection of somebody who knows the token and then says whatever."""
    made = TcpTransport(TOKEN, limits=LONG).connect(pair.server.address)
    return made._control._connection  # type: ignore[attr-defined,no-any-return]


class Explodes:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch exploded",)


@pytest.mark.parametrize(
    "message",
    [
        pickle.dumps(Explodes()), b"[]", b"\xff", b"{}", b'{"do": "reserve"}',
        b'{"do": "reserve", "key": 3, "size_bytes": "x"}', b'{"do": "drop", "handle": "zz"}',
        json.dumps({"do": "reserve", "key": "../x", "size_bytes": 1}).encode(),
        json.dumps({"do": "reserve", "key": "x", "size_bytes": -(1 << 80)}).encode(),
        json.dumps({"do": "reserve", "key": "x", "size_bytes": 1 << 80}).encode(),
    ],
)  # fmt: skip
def test_nonsense_of_one_who_knows_the_token_harms_nobody(
    pair: Pair, message: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pair.hold("k", b"kept")
    connection = authenticated(pair)
    connection.sendall(struct.pack("!I", len(message)) + message)
    assert b"error" in (answer := connection.recv(10_000)) or answer == b""
    assert pair.get("k") == b"kept" and not (tmp_path / "exploded").exists()
    assert pair.pool.used_bytes == 4


def test_a_length_that_cannot_be_takes_no_memory(pair: Pair) -> None:
    connection = authenticated(pair)
    connection.sendall(struct.pack("!I", 0xFFFFFFFF))
    assert connection.recv(100) == b""


WRITER = """
import sys, time
from tune_sync.fastpath.transports import Part, TcpTransport
transport = TcpTransport({token!r})
peer = transport.connect({address!r})
region = transport.register(bytearray({size}))
upload = peer.reserve("k", {size})
upload.write(region, [Part(0, 0, {size})]).wait(60)
transfer = upload.write(region, [Part(0, 0, {size})] * 10_000)
print("writing", flush=True)
transfer.wait(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_writer_that_dies_leaves_nothing(pair: Pair, number: signal.Signals) -> None:
    code = WRITER.format(token=TOKEN, address=pair.server.address, size=16 * MIB)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None and child.stdout.readline() == "writing\n"
        child.send_signal(number)
        if number == signal.SIGKILL:
            wait_until(lambda: pair.pool.used_bytes == 0)
        else:  # its kernel still answers for it: only what it was sending ends
            time.sleep(1.5)
        assert pair.peer.find("k") is None and pair.held("k") is None
    finally:
        child.kill()
        child.wait()
        child.stdout.close()  # type: ignore[union-attr]
    wait_until(lambda: pair.pool.used_bytes == 0)


def test_tls_hides_what_is_sent(tmp_path: Path) -> None:
    tls = make_certificates(tmp_path)
    seen = bytearray()

    def look(direction: str, data: bytes) -> bytes:
        seen.extend(data)
        return data

    shelf = Shelf(CountingPool(tmp_path))
    transport = TcpTransport(TOKEN, tls=tls, limits=LONG)
    with transport.serve(shelf, "127.0.0.1") as server, Relay(server.address, look) as relay:
        with transport.connect(relay.address) as peer, peer.reserve("k", 11) as upload:
            write(upload, b"plain bytes")
            upload.publish()
        assert shelf.find("k") and seen and b"plain bytes" not in seen and MAGIC not in seen


@pytest.mark.parametrize("who", ["other authority", "without TLS"])
def test_tls_lets_in_only_those_whom_the_authority_signed(tmp_path: Path, who: str) -> None:
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    ours, theirs = make_certificates(tmp_path / "ours"), make_certificates(tmp_path / "theirs")
    with_tls = TcpTransport(TOKEN, tls=ours, limits=SHORT)
    other = TcpTransport(TOKEN, tls=theirs if who == "other authority" else None, limits=SHORT)
    shelf = Shelf(CountingPool(tmp_path))
    for one, two in ((with_tls, other), (other, with_tls)):
        with (
            one.serve(shelf, "127.0.0.1") as server,
            pytest.raises((PeerRefusedError, PeerLostError), match="TLS"),
        ):
            two.connect(server.address)


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("no certificate")
    with pytest.raises(ConfigError, match="PEM"):
        TcpTransport(TOKEN, tls=Tls(tmp_path / "x", tmp_path / "x", tmp_path / "x"))


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:x", "host:99999"])
def test_an_address_has_a_host_and_a_port(address: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        TcpTransport(TOKEN).connect(address)
