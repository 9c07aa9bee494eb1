"""A file that is damaged where it is stored is found when it is read, and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
from ray import tune

from tests.unit.test_late_errors import Connected, copy
from tune_sync.errors import DamagedError
from tune_sync.filesystem import SyncHandler
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.homes.home import LocalHome
from tune_sync.homes.store import Info
from tune_sync.layout import Kind, Place, manifest_key
from tune_sync.manifest import FileEntry
from tune_sync.run_filesystem import RunFileSystem
from tune_sync.spec import Options, Spec
from tune_sync.testing.memory_bucket import MemoryBucket
from tune_sync.transfer.digests import CHECKPOINTS_KEPT, Digests

LARGE_BYTES = 20 << 20
C0 = "trial/checkpoint_000000"


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


@pytest.fixture
def filesystem(bucket: MemoryBucket) -> RunFileSystem:
    spec = Spec("digests", "bucket", "x", "", None, Options(), "memory")
    connected: Any = Connected(BucketHome(bucket))  # type: ignore[arg-type]
    return RunFileSystem(SyncHandler(spec, connected))


@pytest.fixture
def checkpoint(filesystem: RunFileSystem, tmp_path: Path) -> tune.Checkpoint:
    (tmp_path / "source/in").mkdir(parents=True)
    (tmp_path / "source/small").write_bytes(b"small")
    (tmp_path / "source/empty").write_bytes(b"")
    (tmp_path / "source/in/large").write_bytes(b"l" * LARGE_BYTES)
    made = copy(tmp_path / "source", filesystem, 0)
    attempt = filesystem.handler.uploads.reported_at(C0)
    filesystem.handler._home().publish(C0, False, attempt)
    return made


def flip(bucket: MemoryBucket, name: str) -> None:
    data = bytearray(bucket.objects[f"{C0}/{name}"])
    data[len(data) // 2] ^= 1
    bucket.objects[f"{C0}/{name}"] = bytes(data)


def test_what_is_whole_is_read(checkpoint: tune.Checkpoint, tmp_path: Path) -> None:
    target = Path(checkpoint.to_directory(str(tmp_path / "copy")))
    assert (target / "small").read_bytes() == b"small"
    assert (target / "in/large").stat().st_size == LARGE_BYTES


@pytest.mark.parametrize("name", ["small", "in/large"])
def test_a_flipped_bit_is_an_error_that_names_the_file(
    bucket: MemoryBucket, checkpoint: tune.Checkpoint, tmp_path: Path, name: str
) -> None:
    flip(bucket, name)
    with pytest.raises(DamagedError, match=f"checkpoint_000000/{name} is damaged.*delete bucket/x"):
        checkpoint.to_directory(str(tmp_path / "copy"))


def test_what_lacks_a_file_is_an_error_that_names_it(
    bucket: MemoryBucket, checkpoint: tune.Checkpoint, tmp_path: Path
) -> None:
    del bucket.objects[f"{C0}/in/large"]
    with pytest.raises(DamagedError, match="checkpoint_000000 is damaged: in/large is missing"):
        checkpoint.to_directory(str(tmp_path / "copy"))


def test_what_lacks_files_on_a_disk_is_an_error_that_names_one(tmp_path: Path) -> None:
    (tmp_path / "source/in").mkdir(parents=True)
    for name in ("one", "two", "in/three"):
        (tmp_path / "source" / name).write_text(name)
    home: Any = LocalHome(tmp_path / "results/x")
    spec = Spec("lacking", str(tmp_path / "results"), "x", "", None, Options())
    filesystem = RunFileSystem(SyncHandler(spec, Connected(home)))  # type: ignore[arg-type]
    made = copy(tmp_path / "source", filesystem, 0)
    home.publish(C0, False, filesystem.handler.uploads.reported_at(C0))
    made.to_directory(str(tmp_path / "whole"))
    (tmp_path / "results/x" / C0 / "in/three").unlink()
    with pytest.raises(DamagedError, match="is damaged: in/three is missing; put a whole copy"):
        made.to_directory(str(tmp_path / "copy"))
    (tmp_path / "results/x" / C0 / "two").unlink()
    with pytest.raises(DamagedError, match="in/three and 1 more of its files are missing"):
        made.to_directory(str(tmp_path / "copy"))


def test_another_length_is_an_error(
    bucket: MemoryBucket, checkpoint: tune.Checkpoint, tmp_path: Path
) -> None:
    bucket.objects[f"{C0}/in/large"] += b"more"
    with pytest.raises(DamagedError, match="bytes are there"):
        checkpoint.to_directory(str(tmp_path / "copy"))


def test_one_file_alone_is_checked_too(
    bucket: MemoryBucket, checkpoint: tune.Checkpoint, filesystem: RunFileSystem
) -> None:
    flip(bucket, "small")
    for opened in (filesystem.open_input_stream, filesystem.open_input_file):
        with pytest.raises(DamagedError), opened(f"{checkpoint.path}/small") as file:
            file.read()


def test_any_part_of_a_file_can_be_read(
    checkpoint: tune.Checkpoint, filesystem: RunFileSystem
) -> None:
    with filesystem.open_input_file(f"{checkpoint.path}/small") as file:
        file.seek(3)
        assert file.read() == b"ll"
        file.seek(0)
        assert file.read() == b"small"


def test_what_has_no_manifest_is_read_as_it_is(
    bucket: MemoryBucket, checkpoint: tune.Checkpoint, filesystem: RunFileSystem
) -> None:
    bucket.delete([f".tune_sync/manifests/{C0}.json"])
    flip(bucket, "small")
    assert filesystem.get_file_info(f"{checkpoint.path}/small").type == pafs.FileType.File
    with filesystem.open_input_stream(f"{checkpoint.path}/small") as file:
        assert len(file.read()) == 5


@pytest.mark.parametrize("held", [b"", b"[]", b'{"format_version": 1}'])
def test_a_manifest_that_cannot_be_read_is_an_error_that_says_what_to_do(
    tmp_path: Path, held: bytes
) -> None:
    home = LocalHome(tmp_path)
    (tmp_path / manifest_key(C0)).parent.mkdir(parents=True)
    (tmp_path / manifest_key(C0)).write_bytes(held)
    with pytest.raises(DamagedError, match=rf"{C0}\.json .*; put a whole copy.*delete {C0} and"):
        Digests().of(home, Place(Kind.CHECKPOINT, "trial", C0, "small"))


def test_who_copies_many_checkpoints_keeps_the_lists_of_the_last_ones() -> None:
    digests, home = Digests(), BucketHome(MemoryBucket())
    for number in range(CHECKPOINTS_KEPT + 3):
        key = f"trial/checkpoint_{number:06d}"
        digests.listed(home, key, [Info(f"{key}/a", False, 1, 0.0, FileEntry("a", 1, "0"))])
    assert len(digests._files) == CHECKPOINTS_KEPT
