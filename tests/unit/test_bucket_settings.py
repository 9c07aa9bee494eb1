"""Settings of a bucket that cannot be right are told by name, before a library breaks off."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tune_sync.buckets.engines import make_client
from tune_sync.buckets.environment import asked_server
from tune_sync.buckets.opening import check_bucket
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import ConfigError

URL = parse_bucket_url("s3://bucket/exp")
HERE = "http://127.0.0.1:1"
GOOD = {"key": "k", "secret": "s", "endpoint_url": HERE, "region": "us-east-1"}
ENGINES = ("obstore", "pyarrow", "fsspec")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("options", "says"),
    [
        *(({name: f"{GOOD.get(name, 't')}\n"}, f"storage_options {name} begins or ends with")
          for name in ("key", "secret", "token", "endpoint_url", "region")),
        ({"secret": "hid\nden"}, "storage_options secret"),
        ({"region": " us"}, "storage_options region"),
        *(({"endpoint_url": url}, "the endpoint of .* has no host, or a port")
          for url in ("http://127.0.0.1:port", "http://:9000", "http://ho st:1", "http://[x")),
        ({"anon": "false"}, "anon='false': True or False"),
        ({"sign_payload": "no"}, "sign_payload='no': True or False"),
        *(({name: value}, f"{name}={value!r}: seconds above zero")
          for name in ("request_timeout_s", "connect_timeout_s")
          for value in (-1, 0, math.nan, math.inf)),
    ],
)  # fmt: skip
def test_an_option_is_named(engine: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        check_bucket(URL, {**GOOD, "engine": engine, **options}, write=False)
    assert "hid" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"]
)
def test_a_variable_is_named_if_it_counts(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "hidden\n")
    with pytest.raises(ConfigError, match=f"^{name} begins or ends with") as caught:
        make_client(URL, {"endpoint_url": HERE})
    assert "hidden" not in str(caught.value)
    make_client(URL, GOOD)


@pytest.mark.parametrize("options", [{"region": "us_east!"}, {"endpoint_url": "http://my_host:1"}])
def test_what_only_s3fs_refuses_is_told_too(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="storage_options endpoint_url and region"):
        check_bucket(URL, {**GOOD, "engine": "fsspec", **options}, write=False)


def test_an_endpoint_that_cannot_be_read_does_not_hide_its_error() -> None:
    assert asked_server("s3", {"endpoint_url": "http://[x"}) == ""
