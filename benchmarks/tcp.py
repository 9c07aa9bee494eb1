"""Bytes over plain TCP sockets, the limit of the link: python -m benchmarks.tcp serve|send ...

A connection starts with one JSON line that says what comes; the receiver answers with one byte
when it has all of it: in memory, or in files that it has synced.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.cases import free_large_files
from benchmarks.orders import serve
from tune_sync.homes.store import SYNCFS_FROM_FILES

PORT = 7077
RECEIVE_BYTES = 4 << 20
DONE = b"k"
SYNCFS = ctypes.CDLL(None).syncfs


def receive_all(target: Path) -> None:
    """Serve connections until killed; files go below `target`, a new directory each time."""
    listener = socket.create_server(("0.0.0.0", PORT))
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_receive, args=(connection, target), daemon=True).start()


def _receive(connection: socket.socket, target: Path) -> None:
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    with connection, connection.makefile("rb", buffering=0) as reader:
        header = json.loads(reader.readline())
        if header["to"] == "memory":
            _take(connection, header["sizes_bytes"][0], buffer, None)
        else:
            directory = target / str(time.monotonic_ns())
            directory.mkdir(parents=True)
            for number, size_bytes in enumerate(header["sizes_bytes"]):
                with (directory / str(number)).open("wb", buffering=0) as file:
                    _take(connection, size_bytes, buffer, file.fileno())
            _sync(directory)
        connection.sendall(DONE)
        free_large_files(target)


def _take(connection: socket.socket, size_bytes: int, buffer: memoryview, file: int | None) -> None:
    left = size_bytes
    while left:
        got = connection.recv_into(buffer[: min(left, len(buffer))])
        if not got:
            raise ConnectionError("the sender closed early")
        if file is not None:
            os.write(file, buffer[:got])
        left -= got


def _sync(directory: Path) -> None:
    """Make a directory of files as durable as tune_sync makes it, and in the same way."""
    paths = [directory, *directory.iterdir()]
    sync, count = (SYNCFS, 1) if len(paths) > SYNCFS_FROM_FILES else (os.fsync, len(paths))
    for path in paths[:count]:
        descriptor = os.open(path, os.O_RDONLY)
        sync(descriptor)
        os.close(descriptor)


def _connect(address: str, to: str, sizes_bytes: list[int]) -> socket.socket:
    connection = socket.create_connection((address, PORT))
    connection.sendall(json.dumps({"to": to, "sizes_bytes": sizes_bytes}).encode() + b"\n")
    return connection


def _send_memory(address: str, data: memoryview) -> None:
    with _connect(address, "memory", [len(data)]) as connection:
        connection.sendall(data)
        connection.recv(1)


def _send_files(address: str, paths: list[Path]) -> None:
    with _connect(address, "files", [path.stat().st_size for path in paths]) as connection:
        for path in paths:
            with path.open("rb") as file:
                connection.sendfile(file)
        connection.recv(1)


def send(address: str, order: dict[str, Any]) -> dict[str, Any]:
    """One measurement: `{"to": "memory"|"files", "streams": N, "directory": ...}`."""
    paths = sorted(Path(order["directory"]).iterdir())
    if order["to"] == "files":
        start_s = time.monotonic()
        _send_files(address, paths)
        return {"seconds": time.monotonic() - start_s}
    data = memoryview(b"".join(path.read_bytes() for path in paths))
    part = -(-len(data) // order["streams"])
    threads = [
        threading.Thread(target=_send_memory, args=(address, data[at : at + part]))
        for at in range(0, len(data), part)
    ]
    start_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"seconds": time.monotonic() - start_s}


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        receive_all(Path(sys.argv[2]))
    else:
        serve(lambda order: send(sys.argv[2], order))
