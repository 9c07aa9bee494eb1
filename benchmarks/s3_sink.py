"""A stand-in for S3 that is never the slower side: python -m benchmarks.s3_sink SOURCES …

It keeps small objects as a store does. Of objects that are named like a file in the directory
SOURCES it drops the bytes, and serves those of that file. So what is measured is the client.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import socket
import sys
import threading
import time
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from benchmarks.s3_wire import Answer, Pace, Request, Wire

READY = "READY "
PAGE_COUNT = 1000
DROPPED_ETAG = "0123456789abcdef0123456789abcdef"
XML = "Content-Type: application/xml\r\n"


@dataclass(frozen=True)
class Stored:
    """An object: its bytes, or the file that has them."""

    size_bytes: int
    etag: str
    modified_s: float
    data: bytes = b""
    file: Path | None = None

    @property
    def headers(self) -> str:
        """Of an answer about it."""
        modified = formatdate(self.modified_s, usegmt=True)
        return (
            f'ETag: "{self.etag}"\r\nLast-Modified: {modified}\r\nAccept-Ranges: bytes\r\n'
            "Content-Type: application/octet-stream\r\n"
        )


class Sink:
    """The objects of all buckets, which all exist.

    Args:
        sources: Directory of the files that are not stored.
    """

    def __init__(self, sources: Path) -> None:
        self._files = {path.name: path for path in sources.rglob("*") if path.is_file()}
        self._objects: dict[str, Stored] = {}
        self._names: list[str] = []  # of all objects, sorted
        self._parts: dict[str, dict[int, tuple[int, bytes]]] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def serve(self, wire: Wire) -> None:
        """Answer one connection until it ends."""
        try:
            while (request := wire.request()) is not None:
                size_bytes, data = wire.body(request, keep=not self._is_dropped(request))
                wire.answer(request, self._act(request, size_bytes, data))
        except (ConnectionError, ValueError, OSError):
            return
        finally:
            wire.close()

    def _is_dropped(self, request: Request) -> bool:
        return request.method == "PUT" and request.key.rpartition("/")[2] in self._files

    def _act(self, request: Request, size_bytes: int, data: bytes) -> Answer:
        name, query = f"{request.bucket}/{request.key}", request.query
        if request.method == "PUT":
            return self._put(request, name, size_bytes, data)
        if request.method == "POST" and "uploads" in query:
            return self._begin(request)
        if request.method == "POST" and "uploadId" in query:
            return self._complete(request, name)
        if request.method == "POST" and "delete" in query:
            return self._delete_many(request.bucket, data)
        if request.method == "DELETE":
            with self._lock:
                if "uploadId" in query:
                    self._parts.pop(query["uploadId"], None)
                else:
                    self._drop(name)
            return Answer("204 No Content")
        if not request.key:
            return self._list(request) if request.method == "GET" else Answer()
        return self._get(request, name)

    def _put(self, request: Request, name: str, size_bytes: int, data: bytes) -> Answer:
        dropped = self._is_dropped(request)
        etag = DROPPED_ETAG if dropped else hashlib.md5(data).hexdigest()
        upload = request.query.get("uploadId")
        if upload:
            with self._lock:
                self._parts[upload][int(request.query["partNumber"])] = (size_bytes, data)
            return Answer(headers=f'ETag: "{etag}"\r\n')
        if not request.key:
            return Answer()
        with self._lock:
            there = self._objects.get(name)
            wanted = request.headers.get("if-match", "").strip('"')
            if (wanted and (there is None or there.etag != wanted)) or (
                there is not None and request.headers.get("if-none-match") == "*"
            ):
                return _error("412 Precondition Failed", "PreconditionFailed")
            self._store(name, size_bytes, data, etag)
        return Answer(headers=f'ETag: "{etag}"\r\n')

    def _store(self, name: str, size_bytes: int, data: bytes, etag: str) -> None:
        file = self._files.get(name.rpartition("/")[2])
        if file is not None and file.stat().st_size != size_bytes:
            raise ValueError(f"{name} has {size_bytes} bytes, not those of {file}")
        if name not in self._objects:
            insort(self._names, name)
        self._objects[name] = Stored(size_bytes, etag, time.time(), b"" if file else data, file)

    def _drop(self, name: str) -> None:
        if self._objects.pop(name, None) is not None:
            del self._names[bisect_left(self._names, name)]

    def _begin(self, request: Request) -> Answer:
        with self._lock:
            upload = f"upload-{next(self._numbers)}"
            self._parts[upload] = {}
        return _xml(
            "InitiateMultipartUploadResult",
            f"<Bucket>{request.bucket}</Bucket><Key>{escape(request.key)}</Key>"
            f"<UploadId>{upload}</UploadId>",
        )

    def _complete(self, request: Request, name: str) -> Answer:
        with self._lock:
            parts = self._parts.pop(request.query["uploadId"])
            data = b"".join(body for _, (_, body) in sorted(parts.items()))
            size_bytes = sum(size for size, _ in parts.values())
            etag = f"{DROPPED_ETAG}-{len(parts)}"
            self._store(name, size_bytes, data, etag)
        return _xml(
            "CompleteMultipartUploadResult",
            f"<Bucket>{request.bucket}</Bucket><Key>{escape(request.key)}</Key>"
            f"<ETag>&quot;{etag}&quot;</ETag>",
        )

    def _delete_many(self, bucket: str, data: bytes) -> Answer:
        keys = [e.text or "" for e in ElementTree.fromstring(data).iter() if e.tag.endswith("Key")]
        with self._lock:
            for key in keys:
                self._drop(f"{bucket}/{key}")
        return _xml(
            "DeleteResult", "".join(f"<Deleted><Key>{escape(k)}</Key></Deleted>" for k in keys)
        )

    def _get(self, request: Request, name: str) -> Answer:
        found = self._objects.get(name)
        if found is None:
            return _error("404 Not Found", "NoSuchKey")
        start, end, status = 0, found.size_bytes, "200 OK"
        wanted = request.headers.get("range", "").removeprefix("bytes=")
        extra = ""
        if wanted and request.method == "GET":
            first, _, last = wanted.partition("-")
            start = int(first) if first else max(0, found.size_bytes - int(last))
            end = min(end, int(last) + 1) if first and last else end
            if start >= found.size_bytes:
                return _error("416 Requested Range Not Satisfiable", "InvalidRange")
            status = "206 Partial Content"
            extra = f"Content-Range: bytes {start}-{end - 1}/{found.size_bytes}\r\n"
        headers = found.headers + extra
        if found.file is None:
            return Answer(status, headers, found.data[start:end])
        return Answer(status, headers, b"", found.file, start, end - start)

    def _list(self, request: Request) -> Answer:
        query = request.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after") or ""
        page = int(query.get("max-keys", PAGE_COUNT))
        coded = quote if query.get("encoding-type") == "url" else escape
        names, body = [], []
        for name, stored in self._below(request.bucket, prefix, delimiter, after):
            if len(names) == page:
                body.append(f"<NextContinuationToken>{coded(names[-1])}</NextContinuationToken>")
                break
            names.append(name)
            body.append(_entry(coded(name), stored) if stored else _common(coded(name)))
        more = len(body) > len(names)
        return _xml(
            "ListBucketResult",
            f"<Name>{request.bucket}</Name><Prefix>{coded(prefix)}</Prefix>"
            f"<KeyCount>{len(names)}</KeyCount><MaxKeys>{page}</MaxKeys>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>"
            + ("<EncodingType>url</EncodingType>" if coded is quote else "")
            + "".join(body),
        )

    def _below(
        self, bucket: str, prefix: str, delimiter: str, after: str
    ) -> Iterator[tuple[str, Stored | None]]:
        """Keys with what is stored there, and directories with None, in order."""
        top = f"{bucket}/"
        with self._lock:
            at = bisect_left(self._names, top + max(prefix, after))
            while at < len(self._names) and self._names[at].startswith(top + prefix):
                key = self._names[at][len(top) :]
                cut = key.find(delimiter, len(prefix)) if delimiter else -1
                if cut < 0:
                    if key > after:
                        yield key, self._objects[top + key]
                    at += 1
                    continue
                directory = key[: cut + len(delimiter)]
                if directory > after:
                    yield directory, None
                at = bisect_left(self._names, top + directory + chr(0x10FFFF), at)


def _entry(key: str, stored: Stored) -> str:
    modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored.modified_s))
    return (
        f"<Contents><Key>{key}</Key><LastModified>{modified}</LastModified>"
        f"<ETag>&quot;{stored.etag}&quot;</ETag><Size>{stored.size_bytes}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
    )


def _common(name: str) -> str:
    return f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"


def _xml(tag: str, inner: str) -> Answer:
    top = f'<{tag} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{inner}</{tag}>'
    return Answer(headers=XML, body=f'<?xml version="1.0" encoding="UTF-8"?>{top}'.encode())


def _error(status: str, code: str) -> Answer:
    body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code></Error>'
    return Answer(status, XML, body.encode())


def main() -> None:
    """Serve on a free port, whose number is printed, until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", type=Path)
    parser.add_argument("--address", default="127.0.0.1", help="where it listens")
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--mb-per-s", type=float, default=0.0, help="of each connection")
    arguments = parser.parse_args()
    sink = Sink(arguments.sources)
    listener = socket.create_server((arguments.address, 0), backlog=512)
    threading.Thread(target=_accept, args=(listener, sink, arguments), daemon=True).start()
    print(f"{READY}{listener.getsockname()[1]}", flush=True)
    sys.stdin.read()


def _accept(listener: socket.socket, sink: Sink, arguments: argparse.Namespace) -> None:
    while True:
        connection, _ = listener.accept()
        pace = Pace(arguments.mb_per_s * 1e6)
        wire = Wire(connection, pace, arguments.latency_ms / 1e3)
        threading.Thread(target=sink.serve, args=(wire,), daemon=True).start()


if __name__ == "__main__":
    main()
