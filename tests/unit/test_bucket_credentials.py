"""What is given signs a request alone: it is never mixed with what the environment has."""

from __future__ import annotations

import http.server
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.retry import Retry
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import ConfigError

ENGINES = ("obstore", "pyarrow", "fsspec")
SIGNED = re.compile(r"Credential=(\w*)/\d+/([\w-]*)/")
GIVEN = {"key": "GIVEN", "secret": "s"}


class Asked:
    """What one server was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.url = ""

    @property
    def _last(self) -> dict[str, str]:
        return self.requests[-1][1]

    @property
    def signed(self) -> tuple[str, str]:
        """The key and the region."""
        found = SIGNED.search(self._last.get("authorization", ""))
        return (found[1], found[2]) if found else ("", "")

    @property
    def token(self) -> str | None:
        return self._last.get("x-amz-security-token")

    @property
    def authorization(self) -> str:
        return self._last.get("authorization", "").partition(":")[0]


@contextmanager
def server() -> Iterator[Asked]:
    asked = Asked()

    class Any200(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # which knows "Expect: 100-continue"

        def do_PUT(self) -> None:
            """Answers a put; and who looks for it then finds one byte."""
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
            self.send_response(200)
            self.send_header("ETag", '"x"')
            self.send_header("Last-Modified", "Mon, 30 Nov 2026 10:00:00 GMT")
            self.send_header("Content-Length", "1" if self.command == "HEAD" else "0")
            self.send_header("Connection", "close")  # of what was put, chunks may be left unread
            self.end_headers()

        do_GET = do_HEAD = do_POST = do_PUT  # noqa: N815

        def log_message(self, *words: object) -> None:
            pass

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Any200)
    threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
    asked.url = f"http://127.0.0.1:{running.server_port}"
    yield asked
    running.shutdown()
    running.server_close()


@pytest.fixture
def asked() -> Iterator[Asked]:
    with server() as one:
        yield one


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / ".aws").mkdir()
    return tmp_path


def put(url: str = "s3://bucket/x", **options: Any) -> None:
    quick = {"request_timeout_s": 20, "connect_timeout_s": 5}
    bucket = open_bucket(parse_bucket_url(url), {**quick, **options}, Retry(1))
    bucket.put("k", b"1")


@pytest.mark.parametrize("more", [{}, {"token": ""}, {"token": None}])
@pytest.mark.parametrize("variable", ["AWS_SESSION_TOKEN", "AWS_TOKEN"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_key_that_is_given_has_no_token_of_another(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, engine: str, variable: str, more: dict[str, Any]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", variable):
        monkeypatch.setenv(name, "of-the-environment")
    put(engine=engine, endpoint_url=asked.url, **GIVEN, **more)
    assert (asked.signed[0], asked.token) == ("GIVEN", None)


def test_a_token_that_is_given_is_sent(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-environment")
    put(endpoint_url=asked.url, token="given", **GIVEN)
    assert (asked.signed[0], asked.token) == ("GIVEN", "given")


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_endpoint_that_is_given_is_asked(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, engine: str, variable: str
) -> None:
    with server() as other:
        monkeypatch.setenv(variable, other.url)
        put(engine=engine, endpoint_url=asked.url, **GIVEN)
        assert asked.requests and not other.requests


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_SKIP_SIGNATURE", "true"), ("AWS_UNSIGNED_PAYLOAD", "true"),
        ("AWS_CONDITIONAL_PUT", "disabled"),
    ],
)  # fmt: skip
def test_what_obstore_alone_reads_does_not_weaken_a_put(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    bucket = open_bucket(
        parse_bucket_url("s3://bucket/x"), {**GIVEN, "endpoint_url": asked.url}, Retry(1)
    )
    bucket.put("k", b"1", create_only=True)
    _, headers = asked.requests[-1]
    assert asked.signed[0] == "GIVEN" and headers["if-none-match"] == "*"
    assert headers["x-amz-content-sha256"] != "UNSIGNED-PAYLOAD"


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"key": "k"}, "without secret"), ({"secret": "s"}, "without key"),
        ({"token": "t"}, "without key and secret"), ({"key": "k", "secret": ""}, "without secret"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("engine", ENGINES)
def test_half_of_the_credentials_is_refused_by_name(
    engine: str, options: dict[str, str], missing: str
) -> None:
    with pytest.raises(ConfigError, match=missing):
        put(engine=engine, endpoint_url="http://127.0.0.1:9", **options)


@pytest.mark.parametrize(
    ("given", "scheme"),
    [("account_key", "SharedKey given"), ("sas_token", ""), ("bearer_token", "Bearer given")],
)
@pytest.mark.parametrize(
    "variable", ["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_TOKEN", "AZURE_SKIP_SIGNATURE"]
)
def test_what_is_given_for_azure_counts_alone(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, given: str, scheme: str, variable: str
) -> None:
    monkeypatch.setenv(variable, "true" if variable.endswith("SIGNATURE") else "b3RoZXI=")
    value = {"account_key": "Z2l2ZW4=", "sas_token": "sv=1&sig=Z2l2", "bearer_token": "given"}[
        given
    ]
    put("abfs://container/x", account_name="given", endpoint=asked.url, **{given: value})
    assert asked.authorization == scheme
    assert ("sig=Z2l2" in asked.requests[-1][0]) == (given == "sas_token")


def test_two_service_accounts_of_google_are_told(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = {
        "type": "service_account", "client_email": "a", "private_key": "x", "private_key_id": "y",
        "gcs_base_url": "http://127.0.0.1:9", "disable_oauth": True,
    }  # fmt: skip
    (home / "account").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(home / "account"))
    with pytest.raises(ConfigError, match="unset GOOGLE_SERVICE_ACCOUNT"):
        put("gs://bucket/x", service_account_key=json.dumps(account))
