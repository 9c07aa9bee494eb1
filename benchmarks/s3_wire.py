"""The HTTP of `s3_sink`: one connection, with a speed limit and a latency of its own."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

STEP_BYTES = 256 << 10
# A sleep shorter than this takes longer than it says.
SHORTEST_SLEEP_S = 0.002


@dataclass(frozen=True)
class Request:
    """What a client asks. Headers have small letters."""

    method: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]


@dataclass(frozen=True)
class Answer:
    """What it is told: bytes, or a part of a file."""

    status: str = "200 OK"
    headers: str = ""
    body: bytes = b""
    file: Path | None = None
    start: int = 0
    length_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Of the body."""
        return self.length_bytes if self.file else len(self.body)


class Pace:
    """Keeps one connection below a speed, over all its requests.

    Args:
        bytes_per_s: The speed; 0: as fast as it goes.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0

    def begin(self) -> None:
        """A body begins: what was not used before is lost."""
        self._free_s = max(self._free_s, time.monotonic())

    def spend(self, size_bytes: int) -> None:
        """Wait as long as so many bytes take."""
        if not self._bytes_per_s:
            return
        self._free_s += size_bytes / self._bytes_per_s
        early_s = self._free_s - time.monotonic()
        if early_s > SHORTEST_SLEEP_S:
            time.sleep(early_s)


class Wire:
    """One connection of a client.

    Args:
        connection: The socket.
        pace: Its speed.
        latency_s: Waited before each answer.
    """

    def __init__(self, connection: socket.socket, pace: Pace, latency_s: float) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._reader = connection.makefile("rb", buffering=64 << 10)
        self._pace = pace
        self._latency_s = latency_s
        self._space = memoryview(bytearray(STEP_BYTES))

    def request(self) -> Request | None:
        """The next request; None at the end."""
        first = self._reader.readline()
        if not first:
            return None
        method, target, _ = first.decode().split(" ", 2)
        headers = {}
        while line := self._reader.readline().strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        if headers.get("expect", "").lower() == "100-continue":
            self._socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        url = urlsplit(target)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        bucket, _, key = unquote(url.path.lstrip("/")).partition("/")
        return Request(method, bucket, key, query, headers)

    def body(self, request: Request, keep: bool) -> tuple[int, bytes]:
        """Take the body: its length, and its bytes if they are to be kept."""
        kept: list[bytes] = []
        self._pace.begin()
        encoding = request.headers.get("content-encoding", "")
        sha = request.headers.get("x-amz-content-sha256", "")
        if request.headers.get("transfer-encoding", "").lower() == "chunked":
            taken = self._http_chunks(kept if keep else None)
        else:
            size_bytes = int(request.headers.get("content-length", 0) or 0)
            taken = self._take(size_bytes, kept if keep else None)
        data = b"".join(kept)
        if "aws-chunked" in encoding or sha.startswith("STREAMING-"):
            taken = int(request.headers.get("x-amz-decoded-content-length", taken))
            data = _without_chunks(data)
        return taken, data

    def answer(self, request: Request, answer: Answer) -> None:
        """Tell the client."""
        if self._latency_s:
            time.sleep(self._latency_s)
        head = (
            f"HTTP/1.1 {answer.status}\r\nContent-Length: {answer.size_bytes}\r\n"
            f"Server: sink\r\nx-amz-request-id: 1\r\n{answer.headers}\r\n"
        )
        inline = b"" if request.method == "HEAD" or answer.file else answer.body
        self._socket.sendall(head.encode() + inline)
        if answer.file and request.method != "HEAD":
            self._send_file(answer)

    def close(self) -> None:
        """End the connection."""
        self._reader.close()
        self._socket.close()

    def _send_file(self, answer: Answer) -> None:
        self._pace.begin()
        at, end = answer.start, answer.start + answer.length_bytes
        with open(answer.file or "", "rb") as file:
            while at < end:
                sent = os.sendfile(
                    self._socket.fileno(), file.fileno(), at, min(STEP_BYTES, end - at)
                )
                at += sent
                self._pace.spend(sent)

    def _http_chunks(self, kept: list[bytes] | None) -> int:
        taken = 0
        while size_bytes := int(self._reader.readline().split(b";")[0], 16):
            taken += self._take(size_bytes, kept)
            self._reader.readline()
        while self._reader.readline().strip():
            pass
        return taken

    def _take(self, size_bytes: int, kept: list[bytes] | None) -> int:
        left = size_bytes
        while left:
            got = self._reader.readinto(self._space[: min(left, STEP_BYTES)])
            if not got:
                raise ConnectionError("the client went away")
            if kept is not None:
                kept.append(bytes(self._space[:got]))
            left -= got
            self._pace.spend(got)
        return size_bytes


def _without_chunks(data: bytes) -> bytes:
    out = []
    while data:
        head, _, data = data.partition(b"\r\n")
        size_bytes = int(head.split(b";")[0], 16)
        if not size_bytes:
            break
        out.append(data[:size_bytes])
        data = data[size_bytes + 2 :]
    return b"".join(out)
