"""An HTTP proxy in front of a store: slow, failing by chance, or counting."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>"
FAULTS = ("503", "500", "reset", "late reset")


@dataclass
class Faults:
    """What the proxy does to requests; may be changed while it runs.

    Attributes:
        delay_s: Before each request is passed on.
        share: Of requests that fail.
        dice: Decides which.
        bytes_per_s: Of the body of a request; 0 for no limit.
        requests: "METHOD path" of each that came.
        passes: While it is not set, no request is answered.
    """

    delay_s: float = 0.0
    share: float = 0.0
    dice: random.Random = field(default_factory=lambda: random.Random(7))
    bytes_per_s: float = 0.0
    requests: list[str] = field(default_factory=list)
    passes: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.passes.set()

    def next(self) -> str:
        if self.dice.random() >= self.share:
            return ""
        return self.dice.choice(FAULTS)


@contextmanager
def proxy(endpoint_url: str, faults: Faults) -> Iterator[str]:
    """Pass requests on to `endpoint_url`; yields the URL to use instead."""
    target = urlsplit(endpoint_url).netloc
    handler = type("Handler", (_Handler,), {"target": target, "faults": faults})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    target: str
    faults: Faults
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        self.faults.requests.append(f"{self.command} {self.path}")
        if self.headers.get("Expect") == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        body = self.read_body()
        rate = self.faults.bytes_per_s
        slowness_s = len(body) / rate if rate else 0.0
        time.sleep(self.faults.delay_s + slowness_s)
        self.faults.passes.wait()
        self.pass_on(body, self.faults.next())

    def read_body(self) -> bytes:
        """As it came: chunks keep their framing."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body, size = b"", -1
        while size:
            line = self.rfile.readline()
            size = int(line.partition(b";")[0], 16)
            body += line + (self.rfile.read(size + 2) if size else b"")
        while not body.endswith(b"\r\n\r\n"):
            body += self.rfile.readline()
        return body

    def pass_on(self, body: bytes, fault: str) -> None:
        if fault in ("503", "500"):
            self.reply(int(fault), [], SLOW_DOWN if fault == "503" else b"")
        elif fault == "reset":
            self.close_connection = True
        else:
            status, headers, answer = self.ask(body)
            if fault:
                self.close_connection = True  # done, and nobody hears of it
            else:
                self.reply(status, headers, answer)

    def ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.target, timeout=60)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("expect", "connection"):
                connection.putheader(name, value)
        connection.endheaders(body)
        found = connection.getresponse()
        answer = found.read()
        connection.close()
        return found.status, found.getheaders(), answer

    def reply(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value  # of a HEAD, whose body is not sent
            elif name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        with suppress(ConnectionError):
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        return
