"""Google's XML API, as far as obstore uses it, in front of fake-gcs-server, which only reads by it.

https://cloud.google.com/storage/docs/xml-api/reference-methods says what each request has to do.
"""

from __future__ import annotations

import hashlib
import re
import sys
import threading
import uuid
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.stores.proxy import Faults, Handler, proxy

Answer = tuple[int, list[tuple[str, str]], bytes]

IS_JSON = re.compile(r"/(storage|upload|download|batch|resumable|_internal)\b")
NUMBER = re.compile(rb"<PartNumber>(\d+)</PartNumber>")


class GoogleXmlHandler(Handler):
    """Passes the JSON API on; does by it what the XML API asks for."""

    uploads: dict[str, dict[int, bytes]]
    changing = threading.Lock()

    def ask(self, body: bytes) -> Answer:
        url = urlsplit(self.path)
        if IS_JSON.match(url.path):
            return super().ask(body)
        query = parse_qs(url.query, keep_blank_values=True)
        if self.command == "PUT" and "uploadId" in query:
            return self.take_part(query, body)
        if self.command == "PUT":
            return self.insert(url.path, body)
        if self.command == "POST":
            return self.compose(url.path, query, body)
        if self.command == "DELETE":
            return self.remove(url.path, query)
        return self.read()

    def read(self) -> Answer:
        headers = {k: v for k, v in self.headers.items() if k.lower() in ("range",)}
        own = {**headers, "Host": self.target}  # what is read by XML is known by the host's name
        status, found, body = self.fetch(self.command, self.path, b"", own)
        # Listings have e-tags without quotes.
        plain = [(k, v.strip('"') if k.lower() == "etag" else v) for k, v in found]
        return self.coded(status, plain, body)

    def coded(self, status: int, headers: list[tuple[str, str]], body: bytes) -> Answer:
        """With a code in what tells that something is not there, which that server leaves out."""
        _, key = names(urlsplit(self.path).path)
        if status != 404 or self.command == "HEAD" or not key:
            return status, headers, body
        return 404, [], ABSENT

    def insert(self, path: str, body: bytes) -> Answer:
        with self.changing:
            wanted = self.headers.get("x-goog-if-generation-match")
            if wanted is not None and wanted != self.generation(path):
                return 412, [], b"<Error><Code>PreconditionFailed</Code></Error>"
            bucket, key = names(path)
            upload = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(key, safe='')}"
            found = self.fetch("POST", upload, body)
            if found[0] != 200:
                return found
            _, headers, _ = self.fetch("HEAD", path)
            return 200, [(k, v.strip('"')) for k, v in headers if k.lower() in WANTED], b""

    def generation(self, path: str) -> str:
        _, headers, _ = self.fetch("HEAD", path)
        return dict(headers).get("X-Goog-Generation", "0")

    def take_part(self, query: dict[str, list[str]], body: bytes) -> Answer:
        self.uploads[query["uploadId"][0]][int(query["partNumber"][0])] = body
        return 200, [("ETag", hashlib.md5(body).hexdigest())], b""

    def compose(self, path: str, query: dict[str, list[str]], body: bytes) -> Answer:
        if "uploads" in query:
            name = uuid.uuid4().hex
            self.uploads[name] = {}
            bucket, key = names(path)
            return xml("InitiateMultipartUpload", Bucket=bucket, Key=key, UploadId=name)
        parts = self.uploads.pop(query["uploadId"][0])
        wanted = [int(number) for number in NUMBER.findall(body)]
        status, headers, answer = self.insert(path, b"".join(parts[n] for n in wanted))
        if status != 200:
            return status, headers, answer
        return xml("CompleteMultipartUpload", headers, ETag=dict(headers)["Etag"])

    def remove(self, path: str, query: dict[str, list[str]]) -> Answer:
        if "uploadId" in query:
            self.uploads.pop(query["uploadId"][0], None)
            return 204, [], b""
        bucket, key = names(path)
        there = f"/storage/v1/b/{bucket}/o/{quote(key, safe='')}"
        status, headers, body = self.fetch("DELETE", there)
        return (204, [], b"") if status == 200 else self.coded(status, headers, body)


def names(path: str) -> tuple[str, str]:
    """Bucket and key."""
    bucket, _, key = path.lstrip("/").partition("/")
    return bucket, unquote(key)


ABSENT = b"<Error><Code>NoSuchKey</Code><Message>It does not exist.</Message></Error>"
WANTED = ("etag", "x-goog-generation")


def xml(name: str, headers: list[tuple[str, str]] | None = None, **fields: str) -> Answer:
    inner = "".join(f"<{key}>{escape(value)}</{key}>" for key, value in fields.items())
    body = f'<?xml version="1.0"?><{name}Result>{inner}</{name}Result>'.encode()
    return 200, [*(headers or []), ("Content-Type", "application/xml")], body


def main(target: str, address: str, port: str) -> None:
    """Serve in a process of its own: pyarrow reads while it holds the interpreter's lock."""
    with proxy(target, Faults(), GoogleXmlHandler, (address, int(port)), uploads={}):
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
