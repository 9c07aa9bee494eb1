"""Files that are fetched from a bucket have their names once all of their bytes are there."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tune_sync.buckets.ahead import RANGE_BYTES
from tune_sync.buckets.bucket import ObjectInfo
from tune_sync.buckets.files import get_files
from tune_sync.testing.memory_bucket import MemoryBucket

LARGE_BYTES = 2 * RANGE_BYTES + 1


class Breaking(MemoryBucket):
    """Answers until the last range of an object is asked for."""

    def get(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        if offset_bytes == 2 * RANGE_BYTES:
            raise OSError("the line is down")
        return super().get(key, offset_bytes, length_bytes)


@pytest.fixture
def down(tmp_path: Path) -> Path:
    """Where an older version of the file is."""
    (tmp_path / "down").mkdir()
    (tmp_path / "down/large").write_bytes(b"older")
    return tmp_path / "down"


def test_a_fetch_that_breaks_off_leaves_what_was_there(down: Path) -> None:
    bucket = Breaking()
    bucket.put("large", bytes(LARGE_BYTES))
    with pytest.raises(OSError, match="the line is down"):
        get_files(bucket, bucket.list(""), down)
    assert os.listdir(down) == ["large"]
    assert (down / "large").read_bytes() == b"older"


def test_an_object_that_has_become_shorter_meanwhile_is_no_file(down: Path) -> None:
    bucket = MemoryBucket()
    bucket.put("large", bytes(LARGE_BYTES - 1))
    with pytest.raises(OSError, match=r"large has changed.*fetch it again"):
        get_files(bucket, [ObjectInfo("large", LARGE_BYTES, 0.0)], down)
    assert os.listdir(down) == ["large"]
    assert (down / "large").read_bytes() == b"older"


@pytest.mark.parametrize("size_bytes", [5, LARGE_BYTES])
def test_what_is_not_wanted_any_more_once_its_bytes_are_there_gets_no_name(
    down: Path, size_bytes: int
) -> None:
    is_fetched = threading.Event()

    class Noting(MemoryBucket):
        def get(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
            data = super().get(key, offset_bytes, length_bytes)
            is_fetched.set()
            return data

    def check() -> None:
        if is_fetched.is_set():
            raise TimeoutError("given up")

    bucket = Noting()
    bucket.put("large", os.urandom(size_bytes))
    with pytest.raises(TimeoutError, match="given up"):
        get_files(bucket, bucket.list(""), down, check)
    assert os.listdir(down) == ["large"]
    assert (down / "large").read_bytes() == b"older"


def test_files_of_all_sizes_arrive(tmp_path: Path) -> None:
    bucket = MemoryBucket()
    sizes = (0, 1, RANGE_BYTES, RANGE_BYTES + 1, LARGE_BYTES)
    given = {f"sub/{size}": os.urandom(size) for size in sizes}
    for key, data in given.items():
        bucket.put(key, data)
    for _ in range(2):  # over what is there, too
        get_files(bucket, bucket.list(""), tmp_path / "down")
        found = [path for path in (tmp_path / "down").rglob("*") if path.is_file()]
        assert {p.relative_to(tmp_path / "down").as_posix(): p.read_bytes() for p in found} == given
