"""An upload in parts whose end was answered, and the answer lost: what is there is looked at.

The server here forgets an upload once it has ended, as many do, and says so when asked again.
"""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.retry import Retry, RetryBucket
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import StoreUnreachableError

SIZE_BYTES = 20 << 20
CHUNKS = [bytes([number]) * (4 << 20) for number in range(5)]
OURS = b"".join(CHUNKS)
ENGINES = ("obstore", "pyarrow", "fsspec")
ENDED = (
    "<Error><Code>NoSuchUpload</Code><Message>The specified upload does not exist. The upload ID "
    "may be invalid, or the upload may have been aborted or completed.</Message></Error>"
)

BEGUN = (
    "<InitiateMultipartUploadResult><Bucket>bucket</Bucket><Key>x/big</Key><UploadId>1</UploadId>"
    "</InitiateMultipartUploadResult>"
)


class Store:
    """One object, of which the first answer to an end gets lost.

    Attributes:
        data: Its bytes; None if it is not there.
        named: Its metadata.
        at_end: What becomes of the bytes that an upload ends with.
    """

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.named: dict[str, str] = {}
        self.at_end: Callable[[bytes], bytes | None] = lambda sent: sent
        self.parts: dict[int, bytes] = {}
        self.begun: dict[str, str] = {}
        self.has_ended = False
        self.url = ""

    def end(self) -> None:
        sent = b"".join(data for _, data in sorted(self.parts.items()))
        self.data = self.at_end(sent)
        self.named = self.begun if self.data == sent else {}
        self.has_ended = True


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    at: Store

    def do_GET(self) -> None:
        if "/big" in self.path and self.at.data is not None:
            self._object(self.at.data)
        elif "list-type" in self.path:
            self._say(200, "<ListBucketResult><Name>bucket</Name></ListBucketResult>")
        else:
            self._say(404)

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        self.at.parts[int(parse_qs(urlsplit(self.path).query)["partNumber"][0])] = self._body()
        self._say(200, ETag='"part"')

    def do_DELETE(self) -> None:
        if "uploadId" in self.path:
            self._say(404, ENDED)
            return
        self.at.data = None
        self._say(204)

    def do_POST(self) -> None:
        self._body()
        if "uploadId" not in self.path:
            self.at.begun = {k: v for k, v in self.headers.items() if "x-amz-meta" in k.lower()}
            self._say(200, BEGUN)
        elif self.at.has_ended:
            self._say(404, ENDED)
        else:
            self.at.end()
            self.close_connection = True

    def _object(self, data: bytes) -> None:
        wanted = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        start = int(wanted[1]) if wanted else 0
        end = int(wanted[2]) + 1 if wanted and wanted[2] else len(data)
        part, more = data[start:end], dict(self.at.named)
        if wanted:
            more["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{len(data)}"
        more["Last-Modified"] = "Wed, 21 Oct 2026 07:28:00 GMT"
        self._say(206 if wanted else 200, part, ETag='"whole"', **more)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = self._unchunked(self.rfile.readline, self.rfile.read)
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" not in (self.headers.get("Content-Encoding") or ""):
            return data
        found, at_byte = b"", 0
        while True:
            line_end = data.index(b"\r\n", at_byte)
            size_bytes = int(data[at_byte:line_end].partition(b";")[0], 16)
            if not size_bytes:
                return found
            found += data[line_end + 2 : line_end + 2 + size_bytes]
            at_byte = line_end + 4 + size_bytes

    def _unchunked(self, line: Callable[[], bytes], read: Callable[[int], bytes]) -> bytes:
        found = b""
        while size_bytes := int(line().partition(b";")[0], 16):
            found += read(size_bytes)
            line()
        while line() != b"\r\n":
            pass
        return found

    def _say(self, status: int, body: str | bytes = "", **headers: str) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def store() -> Iterator[Store]:
    at = Store()
    handler = type("StoreHandler", (Handler,), {"at": at})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    at.url = f"http://127.0.0.1:{server.server_port}"
    yield at
    server.shutdown()
    server.server_close()


def opened(store: Store, engine: str) -> RetryBucket:
    options: dict[str, Any] = {
        "engine": engine, "endpoint_url": store.url, "key": "k", "secret": "s", "region": "x",
        "request_timeout_s": 20,
    }  # fmt: skip
    return open_bucket(parse_bucket_url("s3://bucket/x"), options, Retry(2, sleep=lambda s: None))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_object_that_came_of_this_upload_is_stored(store: Store, engine: str) -> None:
    bucket = opened(store, engine)
    etag = bucket.put_stream("big", CHUNKS, SIZE_BYTES)
    assert store.has_ended and store.data == OURS
    assert etag == bucket.info("big").etag  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "at_end", [lambda sent: b"?" + sent[1:], lambda sent: b"short", lambda sent: None]
)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_not_there_or_is_another_writers_is_never_taken_for_it(
    store: Store, engine: str, at_end: Callable[[bytes], bytes | None]
) -> None:
    store.at_end = at_end
    with pytest.raises(StoreUnreachableError, match=r"cannot put big.*send it again"):
        opened(store, engine).put_stream("big", CHUNKS, SIZE_BYTES)
    assert store.data == at_end(OURS)  # and it is left as it is
