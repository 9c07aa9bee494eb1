"""Through pyarrow, an object that is replaced stays whole, whatever goes wrong half way."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from tune_sync.buckets import arrow_bucket
from tune_sync.buckets.arrow_bucket import ASIDE, ASIDE_S, ArrowBucket

STATE = "experiment_state-1.json"
SMALL = 100


class Failing:
    """As pyarrow's of S3 where the first part is refused: what ends it then puts what it has."""

    def __init__(self, base: Any) -> None:
        self._base = base

    def __enter__(self) -> Failing:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def write(self, data: object) -> None:
        raise OSError("When uploading part: 503 SlowDown")

    def close(self) -> None:
        self._base.close()
        raise OSError("When completing multiple part upload")


class Directory:
    """Files of this machine."""

    def __init__(self, root: Path, fails: bool) -> None:
        self._base, self._fails = pafs.SubTreeFileSystem(str(root), pafs.LocalFileSystem()), fails

    def open_output_stream(self, path: str, **options: Any) -> Any:
        stream = self._base.open_output_stream(path, **options)
        return Failing(stream) if self._fails else stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)


def bucket(root: Path, *, fails: bool = False) -> ArrowBucket:
    (root / "bucket/exp/.tune_sync").mkdir(parents=True, exist_ok=True)
    return ArrowBucket(lambda retries: Directory(root, fails), "bucket/exp")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_bucket, "ONE_REQUEST_BYTES", SMALL)


def left(root: Path) -> list[str]:
    return os.listdir(root / "bucket/exp/.tune_sync")


def test_a_put_that_fails_leaves_what_was_there_and_tells_why(tmp_path: Path) -> None:
    bucket(tmp_path).put(STATE, b"old")
    with pytest.raises(OSError, match="503 SlowDown"):  # which is tried again
        bucket(tmp_path, fails=True).put(STATE, b"n" * (SMALL + 1))
    assert bucket(tmp_path).get(STATE) == b"old"
    assert left(tmp_path) == []


@pytest.mark.parametrize("at", ["its source", "the store"])
def test_a_stream_that_fails_leaves_what_was_there(tmp_path: Path, at: str) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"n" * SMALL
        if at == "its source":
            raise OSError("it cannot be read")

    bucket(tmp_path).put(STATE, b"old")
    with pytest.raises(OSError, match=r"cannot be read|503 SlowDown|completing"):
        bucket(tmp_path, fails=at == "the store").put_stream(STATE, chunks(), 2 * SMALL)
    assert bucket(tmp_path).get(STATE) == b"old"
    assert left(tmp_path) == []


@pytest.mark.parametrize("size_bytes", [SMALL, SMALL + 1])
def test_what_does_not_fail_is_there(tmp_path: Path, size_bytes: int) -> None:
    for data in (b"o" * size_bytes, b"n" * size_bytes):
        bucket(tmp_path).put("put", data)
        bucket(tmp_path).put_stream("stream", [data[:10], data[10:]], size_bytes)
        assert bucket(tmp_path).get("put") == bucket(tmp_path).get("stream") == data
    assert left(tmp_path) == []


def test_a_new_object_that_fails_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="503"):
        bucket(tmp_path, fails=True).put_stream("new", [b"x" * 17_000_000], 17_000_000)
    assert bucket(tmp_path).info("new") is None


def test_what_a_kill_left_goes_at_a_later_look(tmp_path: Path) -> None:
    old, new = f"{ASIDE}old", f"{ASIDE}new"
    for key in (old, new):
        bucket(tmp_path).put(key, b"x")
    before_s = time.time() - ASIDE_S - 60
    os.utime(tmp_path / "bucket/exp" / old, (before_s, before_s))
    bucket(tmp_path).check()  # before a restore is shown, say: it only looks
    assert len(left(tmp_path)) == 2
    bucket(tmp_path).check(tidies=True)
    assert left(tmp_path) == [new.rpartition("/")[2]]


def test_a_late_stream_that_is_given_up_leaves_a_newer_object_of_its_name(tmp_path: Path) -> None:
    """Where its own bytes did not get there."""

    def chunks() -> Iterator[bytes]:
        yield b"late"
        (tmp_path / "bucket/exp/large").unlink()  # the file of this stream
        (tmp_path / "bucket/exp/large").write_bytes(b"of the attempt that counts")
        raise OSError("its attempt is over")

    with pytest.raises(OSError, match="its attempt is over"):
        bucket(tmp_path).put_stream("large", chunks(), 100)
    assert (tmp_path / "bucket/exp/large").read_bytes() == b"of the attempt that counts"
