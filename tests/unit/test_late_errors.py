"""Errors that show as late as in `close`, which pyarrow drops, still make a report fail."""

from __future__ import annotations

import errno
import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow.fs as pafs
import pytest
import ray.cloudpickle
from ray import tune

from tune_sync.errors import StoreFullError
from tune_sync.filesystem import SyncHandler
from tune_sync.homes.home import LocalHome
from tune_sync.report import Report
from tune_sync.run_filesystem import RunFileSystem
from tune_sync.spec import Options, Spec

TRIAL = "trial/checkpoint_000000"
LARGE_BYTES = 9 << 20


class LateHome(LocalHome):
    """Takes everything, as a home on another node does, and tells of a full disk on `flush`."""

    full = True

    def flush(self, key: str) -> None:
        if self.full:
            raise StoreFullError(errno.ENOSPC, "the disk of the home is full")


class Connected:
    """Every process is on the home node."""

    def __init__(self, home: LateHome) -> None:
        self._home = home

    def home(self, spec: Spec) -> LateHome:
        return self._home

    def tell_unstored(self, spec: Spec, key: str, reason: str | None) -> None:
        pass

    def unstored(self, spec: Spec, *, is_last: bool = True) -> dict[str, str]:
        return {}

    def reported(self, spec: Spec, report: Report) -> None:
        pass

    def rank(self) -> int:
        return 0

    def ranks_count(self) -> int:
        return 1

    def where(self) -> str:
        return "here"

    def is_worker(self) -> bool:
        return False


@pytest.fixture
def home(tmp_path: Path) -> LateHome:
    (tmp_path / "home/x").mkdir(parents=True)
    return LateHome(tmp_path / "home/x")


@pytest.fixture
def filesystem(home: LateHome) -> RunFileSystem:
    spec = Spec("key", str(home.root.parent), "x", "", None, Options())
    return RunFileSystem(SyncHandler(spec, Connected(home)))


def copy(
    source: Path, filesystem: RunFileSystem, number: int, then: Callable[[], None] = lambda: None
) -> tune.Checkpoint:
    """What Ray does in `report`; `then` comes before its `Checkpoint`."""
    target = f"{filesystem.handler.experiment_root}/trial/checkpoint_{number:06d}"
    filesystem.create_dir(target)
    pafs.copy_files(
        str(source),
        target,
        source_filesystem=pafs.LocalFileSystem(),
        destination_filesystem=filesystem,
    )
    then()
    return tune.Checkpoint(path=target, filesystem=filesystem)


@pytest.mark.parametrize("size_bytes", [1, LARGE_BYTES])
def test_a_checkpoint_whose_last_bytes_fail_is_an_error_once(
    home: LateHome, filesystem: RunFileSystem, tmp_path: Path, size_bytes: int
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/blob").write_bytes(b"x" * size_bytes)
    with pytest.raises(StoreFullError, match="full"):
        copy(tmp_path / "source", filesystem, 0)
    assert not list(home.root.rglob("*blob*"))  # the attempt is dropped
    ray.cloudpickle.dumps(filesystem)  # and told of once
    home.full = False
    copy(tmp_path / "source", filesystem, 1)
    (sealed,) = home.root.rglob("seal.json")
    assert "checkpoint_000001" in str(sealed)


@pytest.mark.parametrize("size_bytes", [1, LARGE_BYTES])
def test_it_is_one_too_where_another_thread_has_been_told(
    filesystem: RunFileSystem, tmp_path: Path, size_bytes: int
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/blob").write_bytes(b"x" * size_bytes)

    def pickled_elsewhere() -> None:
        with pytest.raises(StoreFullError):  # as it hands another checkpoint to a task
            ray.cloudpickle.dumps(filesystem)

    with pytest.raises(StoreFullError, match="full"):
        copy(tmp_path / "source", filesystem, 0, then=pickled_elsewhere)


class Chunk(bytearray):
    """Bytes of which it can be told whether anybody still holds them."""


def test_why_a_file_is_not_stored_is_kept_without_its_bytes(
    home: LateHome, filesystem: RunFileSystem
) -> None:
    def fail() -> weakref.ref[Chunk]:
        chunk = Chunk(LARGE_BYTES)
        stream = filesystem.handler.open_output_stream(f"{home.root}/trial/log.txt", None)
        stream.write(chunk)
        with suppress(StoreFullError):
            stream.close()
        return weakref.ref(chunk)

    chunk = fail()
    gc.collect()
    assert chunk() is None
    assert "the disk of the home is full" in filesystem.handler.files.unstored["trial/log.txt"]


def test_a_file_that_is_not_stored_is_told_and_kept_until_it_is(
    home: LateHome, filesystem: RunFileSystem, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/note.txt").write_text("text")

    def sync() -> None:
        pafs.copy_files(
            str(tmp_path / "source"),
            f"{home.root}/trial",
            source_filesystem=pafs.LocalFileSystem(),
            destination_filesystem=filesystem,
        )

    sync()
    assert "trial/note.txt is not stored: " in caplog.text
    assert [*filesystem.handler.files.unstored] == ["trial/note.txt"]
    home.full = False
    sync()
    assert filesystem.handler.files.unstored == {}
    assert (home.root / "trial/note.txt").read_text() == "text"
