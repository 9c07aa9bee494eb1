"""An endpoint that is a web server is told as that: no store answers with a page."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tune_sync.buckets.opening import check_bucket, open_bucket
from tune_sync.buckets.retry import Retry
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import ConfigError, StoreDeniedError

URL = parse_bucket_url("s3://bucket/exp")


@contextmanager
def web_server(status: int, page: bytes = b"<html><body>Welcome</body></html>") -> Iterator[str]:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(page)

        do_PUT = do_HEAD = do_POST = do_DELETE = do_GET  # noqa: N815

        def log_message(self, *words: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def options(engine: str, endpoint_url: str) -> dict[str, str]:
    return {
        "engine": engine, "endpoint_url": endpoint_url, "key": "k", "secret": "s", "region": "x",
    }  # fmt: skip


@pytest.mark.parametrize("engine", ["obstore", "pyarrow"])
@pytest.mark.parametrize("status", [200, 404, 405])
@pytest.mark.parametrize("write", [True, False])
def test_it_is_told_before_training_with_its_name(engine: str, status: int, *, write: bool) -> None:
    with web_server(status) as url, pytest.raises(ConfigError, match=f"asked: {url}") as caught:
        check_bucket(URL, options(engine, url), write=write)
    says = "create the bucket" if (engine, status) == ("pyarrow", 404) else "is the endpoint right"
    assert says in str(caught.value)


def test_its_page_for_what_is_not_there_is_no_answer_of_a_store() -> None:
    with web_server(404) as url:
        bucket = open_bucket(URL, options("obstore", url), Retry(1))
        for ask in (
            lambda: bucket.get("x"),
            lambda: bucket.list("x"),
            lambda: bucket.put("x", b""),
        ):
            with pytest.raises(ConfigError, match=f"asked: {url}.*is the endpoint right"):
                ask()


def test_a_put_that_is_answered_by_nothing_there_is_told_as_that() -> None:
    """An object that is put need not be there."""
    with web_server(404, b"404 page not found") as url:
        bucket = open_bucket(URL, options("obstore", url), Retry(1))
        says = f"asked: {url}.*is the endpoint right"
        for put in (lambda: bucket.put("x", b""), lambda: bucket.put_stream("x", [b"1"])):
            with pytest.raises(ConfigError, match=says) as caught:
                put()
            assert "no such object" not in str(caught.value)


def test_its_page_is_no_answer_to_a_put_on_condition() -> None:
    """Nor that another writer was first."""
    with web_server(404) as url:
        bucket = open_bucket(URL, options("obstore", url), Retry(1))
        with pytest.raises(ConfigError, match="is the endpoint right"):
            bucket.put("x", b"", if_match='"abc"')


def test_its_page_for_a_part_of_an_object_is_no_answer_of_a_store() -> None:
    with web_server(200) as url:
        bucket = open_bucket(URL, options("obstore", url), Retry(1))
        with pytest.raises(ConfigError, match=f"asked: {url}.*is the endpoint right"):
            bucket.get("x", 3, 5)


def test_a_refusal_without_a_reason_may_be_one_of_wrong_credentials() -> None:
    with web_server(403) as url:
        bucket = open_bucket(URL, options("obstore", url), Retry(1))
        with pytest.raises(StoreDeniedError, match="or they are wrong"):
            bucket.info("x")
