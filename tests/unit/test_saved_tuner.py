"""`tuner.pkl` has a copy, which a restore uses where Ray's own is not whole."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tune_sync import cleanup, layout
from tune_sync.errors import DamagedError
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.homes.commit import Committer
from tune_sync.homes.saved_tuner import COPY, TUNER, is_whole, keep_copy, put_back, read_whole
from tune_sync.homes.sites import LocalSite, put_whole
from tune_sync.homes.store import LocalStore
from tune_sync.testing.memory_bucket import MemoryBucket

WHOLE = pickle.dumps({"run_config": ["x"] * 100, "bytes": os.urandom(1000)})


def broken() -> Iterator[bytes]:
    yield from (b"", WHOLE[:1], WHOLE[: len(WHOLE) // 2], WHOLE[:-1], b"\0" * len(WHOLE))
    yield from (b"garbage", b".", WHOLE + b"more", WHOLE + WHOLE)
    yield from (b"\x80\x05" + os.urandom(size_bytes) for size_bytes in range(50, 1000))


@pytest.fixture
def site(tmp_path: Path) -> LocalSite:
    site = LocalSite(tmp_path / "x")
    site.prepare()
    (tmp_path / "x" / TUNER).write_bytes(WHOLE)
    return site


def test_only_all_of_it_is_whole() -> None:
    assert all(is_whole(pickle.dumps({"a": [1]}, protocol)) for protocol in range(2, 6))
    assert is_whole(WHOLE)
    assert not [data for data in broken() if is_whole(data)]


@pytest.mark.parametrize("left", [b"", WHOLE[: len(WHOLE) // 2], b"garbage", None])
def test_the_copy_comes_back_where_it_is_not_whole(site: LocalSite, left: bytes | None) -> None:
    keep_copy(site)
    file = site.root / TUNER
    file.unlink()
    if left is not None:
        file.write_bytes(left)
    put_back(site)
    assert file.read_bytes() == WHOLE


def test_what_is_not_whole_does_not_replace_the_copy(site: LocalSite) -> None:
    keep_copy(site)
    (site.root / TUNER).write_bytes(WHOLE[:10])
    keep_copy(site)
    assert (site.root / COPY).read_bytes() == WHOLE


@pytest.mark.parametrize("copy", [None, b"", WHOLE[:10]])
def test_where_none_is_whole_both_are_named_and_nothing_changes(
    site: LocalSite, copy: bytes | None
) -> None:
    if copy is not None:
        (site.root / COPY).write_bytes(copy)
    (site.root / TUNER).write_bytes(WHOLE[:10])
    with pytest.raises(DamagedError, match=r"x/tuner\.pkl is not whole .*\.tune_sync/tuner\.pkl"):
        put_back(site)
    assert (site.root / TUNER).read_bytes() == WHOLE[:10]


def test_where_there_is_none_of_both_there_is_no_experiment() -> None:
    home = BucketHome(MemoryBucket())
    with pytest.raises(FileNotFoundError, match=r"no experiment .* s3://bucket/x: .*tuner\.pkl"):
        read_whole(home, "s3://bucket/x")


def test_in_a_bucket_the_copy_is_read(caplog: pytest.LogCaptureFixture) -> None:
    bucket = MemoryBucket()
    bucket.put(TUNER, b"")
    bucket.put(COPY, WHOLE)
    assert read_whole(BucketHome(bucket), "s3://bucket/x") == WHOLE
    assert "s3://bucket/x/tuner.pkl is not whole (0 bytes): restoring from its copy" in caplog.text


def test_what_is_whole_stays_as_it_is(site: LocalSite) -> None:
    before = (site.root / TUNER).stat()
    put_back(site)
    assert (site.root / TUNER).stat() == before


# A process that may write no more than this to a file is ended by the kernel in the middle of it.
KILLED = """
import resource, signal, sys
from pathlib import Path
from tune_sync.homes.saved_tuner import keep_copy
from tune_sync.homes.sites import LocalSite
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
keep_copy(LocalSite(Path(sys.argv[1])))
"""


def test_what_a_kill_leaves_of_the_copy_is_swept(site: LocalSite) -> None:
    before = sorted(os.listdir(site.root / layout.INTERNAL_DIR))
    killed = subprocess.run([sys.executable, "-c", KILLED, site.root], check=False)
    assert killed.returncode == -signal.SIGXFSZ
    cleanup(site.root)
    after = sorted(os.listdir(site.root / layout.INTERNAL_DIR))
    assert [name for name in after if name not in (*before, "lease.lock")] == []


class Swept(LocalStore):
    """Just before the first file gets its name, the owner of the lease sweeps."""

    is_swept = False

    def rename(self, source: str, target: str) -> None:
        if not self.is_swept:
            self.is_swept = True
            Committer(LocalStore(self.root)).recover()
        super().rename(source, target)


def test_a_sweep_of_the_leases_owner_is_in_nobodys_way(tmp_path: Path) -> None:
    put_whole(Swept(tmp_path), "file", b"data")
    assert (tmp_path / "file").read_bytes() == b"data"
