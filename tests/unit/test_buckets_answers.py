"""What no store answers is an error, and one that passes where a store has answered before."""

from __future__ import annotations

import builtins
import http.server
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from tune_sync.buckets.answers import CheckedClient, NoStoreError
from tune_sync.buckets.bucket import Capabilities, ObjectInfo
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.retry import Retry, RetryBucket
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import ConfigError, StoreUnreachableError
from tune_sync.homes.bucket.listings import is_there
from tune_sync.testing.memory_bucket import MemoryBucket

PAGE = b"<html><body>Sign in</body></html>"
OF_STORE = {"ETag": '"e"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
SAID: dict[str, tuple[int, bytes, dict[str, str]]] = {
    "store": (200, b"of the store", OF_STORE),
    "page": (200, PAGE, {}),
    "moved": (302, b"", {"Location": "/login"}),
    "empty": (200, b"", {}),
    "text": (404, b"404 page not found\n", {}),
    "absent without a body": (404, b"", {}),
    "absent in a word": (404, b"Not Found", {}),
    "absent in JSON": (404, b'{"message": "no Route matched with those values"}', {}),
    "absent": (404, b"<Error><Code>NoSuchKey</Code></Error>", {}),
}
WITHOUT_A_CODE = [says for says in SAID if says.startswith("absent ")]


class Web(http.server.BaseHTTPRequestHandler):
    """A store, or what is in between: one of `SAID` in place of an object."""

    says = "store"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, body, headers = SAID["page" if self.path == "/login" else self.says]
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_PUT = do_HEAD = do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[tuple[type[Web], str]]:
    handler = type("Handler", (Web,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def opened(url: str, tries_count: int = 1) -> RetryBucket:
    options = {
        "engine": "obstore", "endpoint_url": url, "key": "k", "secret": "s", "region": "us-east-1",
    }  # fmt: skip
    retry = Retry(tries_count, sleep=lambda s: None)
    return open_bucket(parse_bucket_url("s3://bucket/exp"), options, retry)


@pytest.mark.parametrize("says", ["page", "moved", "empty"])
def test_each_verb_says_that_it_was_no_store(says: str, web: tuple[type[Web], str]) -> None:
    handler, url = web
    handler.says = says
    bucket = opened(url)
    for ask in (
        lambda: bucket.info("x"),
        lambda: bucket.get("x"),
        lambda: bucket.get("x", 100, 50),
        lambda: bucket.list(""),
        lambda: bucket.list_dir(""),
        lambda: bucket.put("x", b"1"),
        lambda: bucket.put_stream("x", iter([b"1"])),
        lambda: bucket.delete(["x"]),
    ):
        with pytest.raises((ConfigError, StoreUnreachableError)):
            ask()


@pytest.mark.parametrize("says", ["page", "moved", "empty", "text", *WITHOUT_A_CODE])
def test_it_is_waited_for_where_the_store_has_answered_before(
    says: str, web: tuple[type[Web], str]
) -> None:
    handler, url = web
    handler.says = says
    with pytest.raises(ConfigError, match="is the endpoint right"):
        opened(url, 3).get("x")
    handler.says = "store"
    bucket = opened(url, 3)
    assert bucket.get("x") == b"of the store"
    handler.says = says
    asks: Any = (
        lambda: bucket.get("x"),
        lambda: bucket.get("x", 2, 3),
        lambda: bucket.put("x", b"1"),
        lambda: bucket.put("x", b"1", create_only=True),
        lambda: bucket.put("x", b"1", if_match='"e"'),
        lambda: bucket.put_stream("x", iter([b"1"])),
    )
    for ask in asks:
        with pytest.raises(StoreUnreachableError, match="something in between"):
            ask()
    bucket = opened(url, 3)
    pauses: list[float] = []

    def passes(pause_s: float) -> None:
        pauses.append(pause_s)
        handler.says = "store"

    bucket._retry = Retry(3, sleep=passes)
    handler.says = "store"
    bucket.get("x")
    handler.says = says
    assert bucket.get("x") == b"of the store"
    assert len(pauses) == 1


@pytest.mark.parametrize("says", WITHOUT_A_CODE)
def test_who_looks_is_told_that_an_object_is_absent_by_a_store_alone(
    says: str, web: tuple[type[Web], str]
) -> None:
    """An answer to a HEAD has no body: what was not found is read."""
    handler, url = web
    bucket = opened(url)
    handler.says = "absent"
    assert bucket.info("x") is None and not is_there(bucket, "x")
    handler.says = says
    assert bucket.info("x") is None
    with pytest.raises(ConfigError, match="is the endpoint right"):
        is_there(bucket, "x")


@pytest.mark.parametrize("says", ["text", *WITHOUT_A_CODE])
def test_a_delete_of_what_is_there_is_not_done_by_a_404(
    says: str, web: tuple[type[Web], str]
) -> None:
    handler, url = web
    handler.says = says
    with pytest.raises(ConfigError):
        opened(url).delete(["x"])


class Swallows(MemoryBucket):
    """As libraries without e-tags: they take a page for the answer to a put or a delete."""

    swallows = False
    page = b""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(conditional_put=False, etags=False, times=True)

    def info(self, key: str) -> ObjectInfo | None:
        if self.page:
            return ObjectInfo(key, len(self.page), 0.0)
        found = super().info(key)
        return found and ObjectInfo(key, found.size_bytes, found.modified_s)

    def get(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        return self.page or super().get(key, offset_bytes, length_bytes)

    def list_dir(self, prefix: str) -> tuple[builtins.list[ObjectInfo], builtins.list[str]]:
        return ([], []) if self.page else super().list_dir(prefix)

    def put(self, key: str, data: bytes | memoryview, **more: Any) -> str:
        if not self.swallows:
            super().put(key, data, **more)
        return ""

    def put_stream(
        self, key: str, chunks: Iterable[bytes | memoryview], size_bytes: int | None = None
    ) -> str:
        return self.put(key, b"".join(bytes(chunk) for chunk in chunks))

    def delete(self, keys: Sequence[str]) -> None:
        if not self.swallows:
            super().delete(keys)


def test_what_is_put_or_deleted_without_an_e_tag_is_looked_at() -> None:
    client = Swallows()
    bucket = CheckedClient(client)
    assert bucket.put("x", b"1") == bucket.put_stream("y", [b"1", b"2"]) == ""
    client.swallows = True
    for put in (
        lambda: bucket.put("z", b"1"),
        lambda: bucket.put("x", b"22"),
        lambda: bucket.look_for("z", bucket.put_stream("z", [b"1"]), 1),
    ):
        with pytest.raises(NoStoreError, match="what was put is not there"):
            put()
    with pytest.raises(StoreUnreachableError, match="'x' is there after its delete"):
        bucket.delete(["x"])  # that is tried again, whatever words the name has
    client.swallows = False
    bucket.delete(["x"])


@pytest.mark.parametrize("was", [None, b"12345"])
def test_a_stream_that_another_writer_has_replaced_was_put(was: bytes | None) -> None:
    """As where ranks of one checkpoint write files of one name."""
    client = Swallows()
    bucket = RetryBucket(lambda: client, "s3://bucket", Retry(1))
    if was is not None:
        client.put("x", was)

    def chunks() -> Iterator[bytes]:
        yield b"ours"
        client.swallows = True  # ours comes first
        MemoryBucket.put(client, "x", b"of another rank")

    assert bucket.put_stream("x", chunks()) == ""
    client.swallows = False
    client.put("x", b"before")
    client.swallows = True
    with pytest.raises(StoreUnreachableError, match="what was put is not there"):
        bucket.put_stream("x", [b"1"])


def test_nothing_is_behind_the_end_of_an_object() -> None:
    bucket = CheckedClient(Swallows())
    bucket.put("x", b"12345")
    assert bucket.get("x", 100) == bucket.get("x", 5) == b""


def test_a_page_of_the_users_is_a_file_and_of_nobodys_is_none() -> None:
    client = Swallows()
    bucket = CheckedClient(client)
    for body in (PAGE, b""):
        bucket.put("report.html", body)
        assert bucket.get("report.html") == body
    client.page = PAGE
    for ask in (lambda: bucket.get("report.html"), lambda: bucket.list_dir("")):
        with pytest.raises(NoStoreError):
            ask()


def test_what_is_kept_of_a_run_is_no_page_whatever_e_tag_it_has() -> None:
    bucket = MemoryBucket()
    bucket.put(".tune_sync/lease.json", PAGE)
    with pytest.raises(NoStoreError, match="it is a page"):
        CheckedClient(bucket).get(".tune_sync/lease.json")
