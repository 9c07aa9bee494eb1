"""Buckets in forked processes, and where their credentials come from."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.stores.seaweed import KEY, SECRET, S3Server
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import StoreDeniedError

REPOSITORY = Path(__file__).parents[2]


def keys_of(server: S3Server, program: str, *arguments: str) -> list[str]:
    """What a program that is given a URL leaves there."""
    url = f"s3://bucket/{uuid.uuid4().hex}"
    argv = [sys.executable, "-m", program, url, *arguments]
    env = {**os.environ, **server.env, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        argv, env=env, cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return [o.key for o in open_bucket(parse_bucket_url(url), server.options).list("")]


@pytest.mark.parametrize("engine", ["", "pyarrow", "fsspec"])
def test_forked_children_and_their_parent_go_on(server: S3Server, engine: str) -> None:
    assert len(keys_of(server, "tests.stores.fork_and_put", engine)) == 3 + 2 * 4


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("engine", ["", "pyarrow", pytest.param("fsspec", marks=pytest.mark.slow)])
def test_processes_of_a_pool_use_a_bucket_each(server: S3Server, engine: str, method: str) -> None:
    assert len(keys_of(server, "tests.stores.pool_and_put", engine, method)) == 2 + 4


def test_settings_come_from_the_environment(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    for engine in ("obstore", "pyarrow", "fsspec"):
        url = f"s3://bucket/{uuid.uuid4().hex}"
        bucket = open_bucket(parse_bucket_url(url), {"engine": engine})
        bucket.put("x", b"1")
        assert bucket.get("x") == b"1"


@pytest.mark.parametrize("engine", ["obstore", "pyarrow", "fsspec"])
def test_renewed_credentials_are_used_by_an_open_bucket(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    for name, value in {**server.env, "AWS_SECRET_ACCESS_KEY": "expired"}.items():
        monkeypatch.setenv(name, value)
    bucket = open_bucket(parse_bucket_url(f"s3://bucket/{uuid.uuid4().hex}"), {"engine": engine})
    with pytest.raises(StoreDeniedError):
        bucket.put("x", b"1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    bucket.put("x", b"2")
    assert bucket.get("x") == b"2"


@pytest.mark.parametrize("engine", [{}, {"engine": "pyarrow"}])
def test_a_profile_in_a_file_is_read(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: dict[str, str]
) -> None:
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    file.write_text(f"[team]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "team")
    bucket = open_bucket(parse_bucket_url(f"s3://bucket/{uuid.uuid4().hex}"), engine)
    bucket.put("x", b"1")
    assert bucket.get("x") == b"1"
