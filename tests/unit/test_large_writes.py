"""Large writes go to a local disk past the page cache, and say of a full one what others say."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_store_disks import REPOSITORY
from tune_sync.homes import large_writes
from tune_sync.homes.large_writes import ALIGNED_BYTES, LARGE_BYTES, ROOM_BYTES
from tune_sync.homes.store import LocalStore

DATA = random.Random(7).randbytes(2 * ROOM_BYTES + LARGE_BYTES + 5)
FULL = """
import resource, sys
from pathlib import Path
from tune_sync.homes.store import LocalStore
at, limit = Path(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    LocalStore(at).write_at("file", 0, bytes(16 << 20))
except OSError as error:
    print(error.errno)
"""


def is_cached(path: Path, at_bytes: int) -> bool:
    """Whether that page is in memory. A read to find out, RWF_NOWAIT too, may bring it there."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        page = (ctypes.c_char * mmap.PAGESIZE).from_buffer(mapped, at_bytes)
        told = ctypes.c_ubyte()
        done = ctypes.CDLL(None, use_errno=True).mincore(page, mmap.PAGESIZE, ctypes.byref(told))
        del page  # or it cannot be unmapped
    assert done == 0, os.strerror(ctypes.get_errno())
    return bool(told.value & 1)


def is_on_a_disk(path: Path) -> bool:
    return os.major(path.stat().st_dev) != 0


@pytest.fixture
def a_disk(tmp_path: Path) -> Path:
    if not is_on_a_disk(tmp_path):
        pytest.skip(f"{tmp_path} is on no disk: set TMPDIR to a directory of one")
    return tmp_path


@pytest.mark.parametrize("offset_bytes", [0, ALIGNED_BYTES, 1, LARGE_BYTES + 512])
@pytest.mark.parametrize(
    "size_bytes",
    [LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, ROOM_BYTES + ALIGNED_BYTES, len(DATA)],
)  # fmt: skip
def test_every_byte_is_where_it_belongs(
    tmp_path: Path, offset_bytes: int, size_bytes: int
) -> None:  # fmt: skip
    store, data = LocalStore(tmp_path), DATA[:size_bytes]
    store.write_at("file", 0, b"x" * (offset_bytes + 3))
    store.write_at("file", offset_bytes, memoryview(data))
    assert (tmp_path / "file").read_bytes() == b"x" * offset_bytes + data


def test_chunks_may_come_in_any_order(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for start in (2 * ROOM_BYTES, 0, ROOM_BYTES):
        end = None if start == 2 * ROOM_BYTES else start + ROOM_BYTES
        store.write_at("file", start, DATA[start:end])
    assert (tmp_path / "file").read_bytes() == DATA


def test_what_is_large_leaves_the_cache_to_others(a_disk: Path) -> None:
    store = LocalStore(a_disk)
    store.write_at("large", 0, DATA)
    store.write_at("small", 0, DATA[: LARGE_BYTES - 1])
    assert not is_cached(a_disk / "large", 0)
    assert not is_cached(a_disk / "large", 2 * ROOM_BYTES)
    assert is_cached(a_disk / "small", 0)


def test_what_need_not_be_durable_soon_stays_in_the_cache(a_disk: Path) -> None:
    store = LocalStore(a_disk)
    store.is_hasty = False
    store.write_at("large", 0, DATA)
    assert is_cached(a_disk / "large", 0)


def test_a_disk_that_refuses_such_writes_gets_usual_ones(
    a_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_writes, "ALIGNED_BYTES", 8)  # less than any disk takes
    LocalStore(a_disk).write_at("file", 8, DATA[: LARGE_BYTES + 8])
    assert (a_disk / "file").read_bytes() == bytes(8) + DATA[: LARGE_BYTES + 8]


@pytest.mark.parametrize("limit_bytes", [ROOM_BYTES, ROOM_BYTES + 8192, ROOM_BYTES + 100])
def test_no_room_for_all_of_it_is_an_error_and_no_endless_loop(
    a_disk: Path, limit_bytes: int
) -> None:
    command = [sys.executable, "-c", FULL, str(a_disk), str(limit_bytes)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.stdout.split() == [str(errno.EFBIG)], done.stderr
    assert (a_disk / "file").stat().st_size <= limit_bytes
