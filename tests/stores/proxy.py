"""An HTTP proxy in front of a store: slow, failing by chance, or counting."""

from __future__ import annotations

import http.client
import json
import math
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from tests.stores.processes import serving
from tests.stores.seaweed import free_ports

REFUSED_REWRITE = "rewritten too soon"
FAULTS = ("503", "500", "429", "reset", "late reset", "cut")
ANSWERS = {
    "503": (503, "SlowDown", "Reduce your request rate"),
    "500": (500, "InternalError", "We encountered an internal error"),
    "429": (429, "TooManyRequests", "Reduce your request rate"),
    REFUSED_REWRITE: (429, "SlowDown", "The object exceeded the rate limit for object mutations"),
    "expired": (400, "ExpiredToken", "The provided token has expired"),
    "denied": (403, "AccessDenied", "Access Denied"),
    "moved": (301, "PermanentRedirect", "The bucket is in another region"),
    "too many": (400, "InvalidPart", "Part number must be at most 10"),
    "malformed": (400, "AuthorizationHeaderMalformed", "The region is wrong; expecting eu-west-1"),
    "illegal": (400, "IllegalLocationConstraintException", "Not for this endpoint"),
    "skewed": (403, "RequestTimeTooSkewed", "The request is too far from the time of the server"),
    "quota": (403, "QuotaExceeded", "The bucket is full"),
}
# Of a body, before a connection is cut.
CUT_BYTES = 64 << 10


@dataclass
class Faults:
    """What the proxy does to requests; may be changed while it runs.

    Attributes:
        delay_s: Before each request is passed on.
        share: Of requests that fail.
        kinds: Of faults, of which one is taken: "reset" comes before the request was heard as a
            whole, "late reset" after it was done, "cut" within the answer.
        dice: Decides which.
        planned: Faults of the next requests, before any is left to chance; "" for none.
        bytes_per_s: Of the body of a request; 0 for no limit.
        rewrite_s: Seconds that have to pass before an object is put again, as at Google; 0: none.
            Not of those that pyarrow puts into S3 in place of directories.
        is_down: Nothing is answered.
        requests: "METHOD path" of each that came.
        passes: While it is not set, no request is answered.
        failed: The fault of each that failed.
        most_at_once: Command -> how many requests of it were under way at once, at most.
    """

    delay_s: float = 0.0
    share: float = 0.0
    kinds: Sequence[str] = FAULTS
    dice: random.Random = field(default_factory=lambda: random.Random(7))
    planned: list[str] = field(default_factory=list)
    bytes_per_s: float = 0.0
    rewrite_s: float = 0.0
    is_down: bool = False
    requests: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    passes: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.passes.set()
        self._puts: dict[str, float] = {}
        self._counted = threading.Lock()
        self._under_way: Counter[str] = Counter()
        self.most_at_once: Counter[str] = Counter()

    @contextmanager
    def under_way(self, command: str) -> Iterator[None]:
        """Count a request as long as the block."""
        with self._counted:
            self._under_way[command] += 1
            self.most_at_once[command] = max(self.most_at_once[command], self._under_way[command])
        try:
            yield
        finally:
            with self._counted:
                self._under_way[command] -= 1

    def next(self, command: str, path: str) -> str:
        """The fault of the next request; "" for none."""
        fault = self._next(command, path)
        if fault:
            self.failed.append(fault)
        return fault

    def _next(self, command: str, path: str) -> str:
        if self.is_down:
            return "reset"
        if self.rewrite_s:
            is_put = command == "PUT" and "partNumber=" not in path and not path.endswith("/")
            return self._of_put(path) if is_put else ""
        with suppress(IndexError):
            return self.planned.pop(0)
        if self.dice.random() >= self.share:
            return ""
        return self.dice.choice(self.kinds)

    def _of_put(self, path: str) -> str:
        now_s = time.monotonic()
        with self._counted:
            if now_s - self._puts.get(path, -math.inf) < self.rewrite_s:
                return REFUSED_REWRITE
            self._puts[path] = now_s
        return ""


class WrittenFaults(Faults):
    """Faults whose fields another process writes into a file, as JSON.

    Each that comes is a line of a file beside it.
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self._read_ns = 0

    def next(self, command: str, path: str) -> str:
        changed_ns = self._file.stat().st_mtime_ns
        if changed_ns != self._read_ns:
            self._read_ns = changed_ns
            for name, value in json.loads(self._file.read_text()).items():
                setattr(self, name, value)
        fault = super().next(command, path)
        self.requests.clear()
        with open(self._file.with_suffix(".failed"), "a") as out:
            out.write(f"{fault}\n" if fault else "")
        return fault


@contextmanager
def proxy_process(endpoint_url: str, file: Path) -> Iterator[str]:
    """A proxy in a process of its own, with `WrittenFaults`; yields its URL.

    A client that holds the interpreter's lock while it waits, as pyarrow does at times, would wait
    for ever for a proxy in its own process.
    """
    write_faults(file)
    (port,) = free_ports(1)
    argv = proxy_argv(endpoint_url, file, "127.0.0.1", port)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with serving(argv, file.parent / f"{file.stem}-proxy", port, env):
        yield f"http://127.0.0.1:{port}"


def proxy_argv(endpoint_url: str, file: Path | str, address: str, port: int) -> list[str]:
    """The command of a proxy."""
    given = [endpoint_url, str(file), address, str(port)]
    return [sys.executable, "-m", "tests.stores.proxy", *given]


def write_faults(file: Path, **fields: object) -> None:
    """Change what a proxy in another process does; what is not named is as at its start."""
    usual = {"share": 0.0, "kinds": FAULTS, "delay_s": 0.0, "bytes_per_s": 0.0, "is_down": False}
    usual |= {"rewrite_s": 0.0}
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps({**usual, **fields}))
    fresh.replace(file)


@contextmanager
def proxy(
    endpoint_url: str,
    faults: Faults,
    base: type[Handler] | None = None,
    address: tuple[str, int] = ("127.0.0.1", 0),
    **attributes: object,
) -> Iterator[str]:
    """Pass requests on to `endpoint_url`; yields the URL to use instead."""
    target = urlsplit(endpoint_url).netloc
    own = {"target": target, "faults": faults, **attributes}
    server = ThreadingHTTPServer(address, type("Handler", (base or Handler,), own))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://{address[0]}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    """One request: passed on, or not."""

    target: str
    faults: Faults
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        """Pass it on, with the next fault."""
        self.faults.requests.append(f"{self.command} {self.path}")
        fault = self.faults.next(self.command, self.path)
        if self.headers.get("Expect") == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        if fault == "reset":
            self.rfile.read(min(CUT_BYTES, int(self.headers.get("Content-Length") or 0)))
            self.close_connection = True
            return
        body = self.read_body()
        rate = self.faults.bytes_per_s
        slowness_s = len(body) / rate if rate else 0.0
        with self.faults.under_way(self.command):
            time.sleep(self.faults.delay_s + slowness_s)
            self.faults.passes.wait()
            self.pass_on(body, fault)

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
        if fault in ANSWERS:
            status, code, message = ANSWERS[fault]
            xml = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
            self.reply(status, [("Content-Type", "application/xml")], xml.encode())
            return
        status, headers, answer = self.ask(body)
        if fault == "late reset":
            self.close_connection = True  # done, and nobody hears of it
        else:
            self.reply(status, headers, answer, is_cut=fault == "cut")

    def ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """What the store answers to this request."""
        kept = {k: v for k, v in self.headers.items() if k.lower() not in ("expect", "connection")}
        return self.fetch(self.command, self.path, body, kept)

    def fetch(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """What the store answers to a request."""
        connection = http.client.HTTPConnection(self.target, timeout=60)
        given = (
            {"Host": self.target, "Content-Length": str(len(body))} if headers is None else headers
        )
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in given.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        found = connection.getresponse()
        answer = found.read()
        connection.close()
        return found.status, found.getheaders(), answer

    def reply(
        self, status: int, headers: list[tuple[str, str]], body: bytes, *, is_cut: bool = False
    ) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value  # of a HEAD, whose body is not sent
            elif name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command == "HEAD":
            return
        if is_cut:
            self.close_connection = True
            body = body[: min(CUT_BYTES, len(body) // 2)]
        with suppress(ConnectionError):
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        return


def main(endpoint_url: str, file: str, address: str, port: str) -> None:
    """Serve until the process is killed."""
    with proxy(endpoint_url, WrittenFaults(Path(file)), address=(address, int(port))):
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
