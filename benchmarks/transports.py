"""Memory to memory between two isolated hosts: python -m benchmarks.transports [SIZE_MB] [ROUNDS]

Plain sockets and Arrow Flight without any check, and TCP of tune_sync with digests, in turn, from
one warm slot into another. Needs root, and no Ray.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash
from pyarrow import flight

from tests.bed.bare import BareHosts
from tune_sync.fastpath import Slots
from tune_sync.fastpath.slot import Slot
from tune_sync.fastpath.transports import Limits, Part, Peer, Shelf, TcpTransport

TOKEN = b"of no importance"
SHARED_MEMORY = Path("/dev/shm")
SOCKET_PORT, FLIGHT_PORT, OURS_PORT, ASK_PORT = 7001, 7002, 7003, 7004
CPU, DIGEST = b"c", b"d"
BATCH_BYTES = 16 << 20
SCHEMA = pa.schema([("data", pa.uint8())])
Way = Callable[[str, Slot, int, int], None]


def slot_of(size_bytes: int) -> Slot:
    slot = Slot(SHARED_MEMORY, size_bytes)
    slot.warm()
    return slot


def receive(size_bytes: int) -> None:
    """Hold the memory for all ways until killed."""
    slot = slot_of(size_bytes)
    listeners = {port: socket.create_server(("0.0.0.0", port)) for port in (SOCKET_PORT, ASK_PORT)}
    start(_take_all, listeners[SOCKET_PORT], slot)
    start(_tell, listeners[ASK_PORT], slot)
    start(_FlightMemory(slot).serve)
    slots = Slots(SHARED_MEMORY, memory_limit_bytes=2 * size_bytes, max_checkpoints_in_memory=1)
    shelf = Shelf(slots)
    with TcpTransport(TOKEN).serve(shelf, "0.0.0.0", OURS_PORT):
        print("ready", flush=True)
        sys.stdin.read()


def start(function: Callable[..., object], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def _take_all(listener: socket.socket, slot: Slot) -> None:
    while True:
        connection, _ = listener.accept()
        start(_take, connection, slot)


def _take(connection: socket.socket, slot: Slot) -> None:
    with connection:
        offset, length = (int(n) for n in connection.recv(64, socket.MSG_WAITALL).split())
        view = memoryview(slot.memory)[offset : offset + length]
        while view:
            view = view[connection.recv_into(view, min(len(view), 4 << 20), socket.MSG_WAITALL) :]
        connection.sendall(b"k")


def _tell(listener: socket.socket, slot: Slot) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            told = {"cpu_s": time.process_time()}
            if connection.recv(1) == DIGEST:
                told["digest"] = xxhash.xxh3_128_hexdigest(slot.memory)
                slot.memory[:] = bytes(len(slot.memory))  # nothing of one way helps the next
            connection.sendall(json.dumps(told).encode())


class _FlightMemory(flight.FlightServerBase):
    def __init__(self, slot: Slot) -> None:
        super().__init__(f"grpc://0.0.0.0:{FLIGHT_PORT}")
        self._view = memoryview(slot.memory)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        at = int(descriptor.command)
        with contextlib.suppress(StopIteration):
            while True:
                data = memoryview(reader.read_chunk().data.column(0).buffers()[1]).cast("B")
                self._view[at : at + len(data)] = data
                at += len(data)


def in_threads(function: Callable[[int, int], None], size_bytes: int, streams: int) -> None:
    part = -(-size_bytes // streams)
    offsets = range(0, size_bytes, part)
    with ThreadPoolExecutor(streams) as pool:
        list(pool.map(lambda at: function(at, min(part, size_bytes - at)), offsets))


def by_socket(address: str, slot: Slot, size_bytes: int, streams: int) -> None:
    def send(offset: int, length: int) -> None:
        with socket.create_connection((address, SOCKET_PORT)) as connection:
            connection.sendall(f"{offset} {length}".ljust(64).encode())
            connection.sendall(memoryview(slot.memory)[offset : offset + length])
            connection.recv(1)

    in_threads(send, size_bytes, streams)


def by_sendfile(address: str, slot: Slot, size_bytes: int, streams: int) -> None:
    def send(offset: int, length: int) -> None:
        with (
            slot.path.open("rb") as file,
            socket.create_connection((address, SOCKET_PORT)) as connection,
        ):
            connection.sendall(f"{offset} {length}".ljust(64).encode())
            connection.sendfile(file, offset, length)
            connection.recv(1)

    in_threads(send, size_bytes, streams)


def by_flight(address: str, slot: Slot, size_bytes: int, streams: int) -> None:
    def send(offset: int, length: int) -> None:
        options = [("tune_sync.stream", offset)]  # equal channels would share one connection
        with flight.connect(f"grpc://{address}:{FLIGHT_PORT}", generic_options=options) as client:
            descriptor = flight.FlightDescriptor.for_command(str(offset).encode())
            writer, _ = client.do_put(descriptor, SCHEMA)
            with writer:
                for at in range(offset, offset + length, BATCH_BYTES):
                    end = min(at + BATCH_BYTES, offset + length)
                    data = pa.py_buffer(memoryview(slot.memory)[at:end])
                    array = pa.Array.from_buffers(pa.uint8(), end - at, [None, data])
                    writer.write_batch(pa.record_batch([array], SCHEMA))

    in_threads(send, size_bytes, streams)


def by_ours(address: str, slot: Slot, size_bytes: int, streams: int) -> None:
    with _connected(address, streams) as peer:
        _put(peer, slot, size_bytes, streams)


def by_ours_connected(address: str, slot: Slot, size_bytes: int, streams: int) -> None:
    """As replicas travel: a process connects once."""
    peer = _peers.get(streams)
    if peer is None:
        peer = _peers[streams] = _connected(address, streams)
    _put(peer, slot, size_bytes, streams)


_peers: dict[int, Peer] = {}


def _transport(streams: int) -> TcpTransport:
    return TcpTransport(TOKEN, limits=Limits(stream_count=streams))


def _connected(address: str, streams: int) -> Peer:
    return _transport(streams).connect(f"{address}:{OURS_PORT}")


def _put(peer: Peer, slot: Slot, size_bytes: int, streams: int) -> None:
    with _transport(streams).register(slot.memory) as region:
        with peer.reserve("bench", size_bytes) as upload:
            upload.write(region, [Part(0, 0, size_bytes)]).wait(60)
            upload.publish()
        peer.remove("bench")


WAYS: dict[str, Way] = {
    "socket": by_socket, "sendfile": by_sendfile, "flight": by_flight, "tune_sync": by_ours,
    "connected": by_ours_connected,
}  # fmt: skip
OURS = (by_ours, by_ours_connected)


def send(address: str, size_bytes: int, round_count: int) -> None:
    slot = slot_of(size_bytes)
    pattern = os.urandom(1 << 20)
    slot.memory[:] = (pattern * (size_bytes // len(pattern) + 1))[:size_bytes]
    digest = xxhash.xxh3_128_hexdigest(slot.memory)
    found: dict[str, list[tuple[float, float, float]]] = {}
    for number in range(round_count + 1):
        for name, way in WAYS.items():
            for streams in (1, 2, 4):
                measured = _measure(lambda: way(address, slot, size_bytes, streams), address)  # noqa: B023
                if not number and way not in OURS:  # which compare by themselves
                    assert _ask(address, DIGEST)["digest"] == digest, f"{name} lost bytes"
                if number:  # the first makes slots and connections
                    found.setdefault(f"{name} x {streams}", []).append(measured)
    print(json.dumps(found))
    for peer in _peers.values():
        peer.close()
    slot.close()


def _measure(call: Callable[[], None], address: str) -> tuple[float, float, float]:
    theirs = _ask(address, CPU)["cpu_s"]
    ours, began = time.process_time(), time.monotonic()
    call()
    seconds = time.monotonic() - began
    return seconds, time.process_time() - ours, _ask(address, CPU)["cpu_s"] - theirs


def _ask(address: str, what: bytes) -> Any:
    with socket.create_connection((address, ASK_PORT)) as connection:
        connection.sendall(what)
        return json.loads(connection.recv(1000))


def main(size_bytes: int, round_count: int) -> None:
    module = [sys.executable, "-m", "benchmarks.transports"]
    with BareHosts(shm_bytes=4 * size_bytes) as bed:
        receiver = bed.hosts["head"].popen(
            [*module, "receive", str(size_bytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert receiver.stdout is not None and receiver.stdout.readline() == "ready\n"
        argv = [*module, "send", bed.addresses["head"], str(size_bytes), str(round_count)]
        found = json.loads(bed.hosts["w1"].exec(argv, timeout_s=600).stdout)
        receiver.kill()
    print(f"{size_bytes / 1e6:.0f} MB, medians of {round_count}")
    print(f"{'':16} {'GB/s':>6} {'CPU s/GB here':>14} {'there':>6}")
    for name, runs in found.items():
        seconds, ours, theirs = (statistics.median(column) for column in zip(*runs, strict=True))
        gigabytes = size_bytes / 1e9
        speed, here, there = gigabytes / seconds, ours / gigabytes, theirs / gigabytes
        print(f"{name:16} {speed:6.2f} {here:14.2f} {there:6.2f}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["receive", size]:
            receive(int(size))
        case ["send", address, size, rounds]:
            send(address, int(size), int(rounds))
        case rest:
            size_mb, rounds_given = [*rest, *("1074", "5")[len(rest) :]]
            main(int(size_mb) * 1_000_000, int(rounds_given))
