"""Keys that live for seconds: an open bucket goes on with those that came after them.

As those that clouds hand out, a key is renewed before its end.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.stores.proxy import Faults, Handler, proxy
from tests.stores.seaweed import S3Server, make_bucket, seaweed
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.retry import Retry
from tune_sync.buckets.url import parse_bucket_url

LIFE_S = 4.0
KEYS_COUNT = 30
USERS = {f"key{number}": ["Admin", "Read", "Write", "List"] for number in range(KEYS_COUNT)}
ENGINES = ("obstore", "pyarrow", pytest.param("fsspec", marks=pytest.mark.slow))
KEY = re.compile(r"Credential=(key\d+)/")


class Keys:
    """A key is renewed after `LIFE_S`, and ends as long after that."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()

    def ends_in_s(self, number: int) -> float:
        """Until a key is no longer good."""
        return self._start_s + (number + 2) * LIFE_S - time.monotonic()

    @property
    def number(self) -> int:
        return int((time.monotonic() - self._start_s) / LIFE_S)

    @property
    def key(self) -> str:
        return f"key{self.number}"

    def is_valid(self, key: str) -> bool:
        return key in (self.key, f"key{self.number - 1}")


class ExpiringHandler(Handler):
    """Answers that the token has expired where a request was signed with an older key."""

    keys: Keys
    seen: set[str]

    def pass_on(self, body: bytes, fault: str) -> None:
        found = KEY.search(self.headers.get("Authorization") or "")
        self.seen.add(found[1] if found else "")
        if found is None or not self.keys.is_valid(found[1]):
            fault = "expired"
        super().pass_on(body, fault)


@contextmanager
def renewed(keys: Keys, directory: Path) -> Iterator[None]:
    """Write the valid key into files, as a tool that renews credentials would."""
    over = threading.Event()

    def write() -> None:
        written = -1
        while not over.wait(0.01):
            if keys.number == written:
                continue
            written = keys.number
            write_keys(directory, keys, written)

    write_keys(directory, keys, keys.number)
    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join()


def write_keys(directory: Path, keys: Keys, number: int) -> None:
    key, secret = f"key{number}", f"key{number}-secret"
    profile = f"[team]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
    replace(directory / "credentials", profile)
    end = datetime.now(timezone.utc) + timedelta(seconds=keys.ends_in_s(number))
    answer = {
        "Version": 1, "AccessKeyId": key, "SecretAccessKey": secret, "SessionToken": "",
        "Expiration": end.isoformat(),
    }  # fmt: skip
    replace(directory / "answer.json", json.dumps(answer))


def replace(file: Path, text: str) -> None:
    fresh = file.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(file)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweed(tmp_path_factory.mktemp("weed"), users=USERS) as running:
        yield running


@pytest.mark.parametrize("source", ["file", "process"])
@pytest.mark.parametrize("engine", ENGINES)
def test_everything_is_stored_with_keys_that_live_for_eight_seconds(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, source: str
) -> None:
    keys, seen = Keys(), set[str]()
    (tmp_path / "config").write_text(
        f"[profile team]\ncredential_process = cat {tmp_path}/answer.json\n"
        if source == "process" else "[profile team]\n"
    )  # fmt: skip
    credentials = "credentials" if source == "file" else "none"
    settings = {
        "AWS_PROFILE": "team", "AWS_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / credentials),
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    prefix = uuid.uuid4().hex
    root = open_bucket(parse_bucket_url(f"s3://bucket/{prefix}"), server.options)
    with (
        proxy(server.endpoint_url, Faults(), ExpiringHandler, keys=keys, seen=seen) as url,
        renewed(keys, tmp_path),
    ):
        make_bucket(server)
        options = {"engine": engine, "endpoint_url": url}
        retry = Retry(stream_credentials_s=LIFE_S / 4)
        bucket = open_bucket(parse_bucket_url(f"s3://bucket/{prefix}"), options, retry)
        for number in range(10):
            bucket.put(f"{number:02}", str(number).encode())
            assert bucket.info(f"{number:02}") is not None
            bucket.put_stream(f"stream-{number:02}", [b"x" * (1 << 20)])
            time.sleep(LIFE_S / 4)
        assert keys.number >= 2
    assert len(seen) >= 3
    assert len(root.list("")) == 20
    assert root.get("07") == b"7"
