"""Large files of a checkpoint directory that change, or cannot be sent, while they are read."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.unit.staged import CHECKPOINT
from tune_sync.errors import StoreFullError
from tune_sync.homes.commit import Committer
from tune_sync.homes.digests import digest_of
from tune_sync.homes.home import LocalHome
from tune_sync.transfer.upload import CheckpointUpload


def test_a_full_home_is_what_a_large_file_fails_with(tmp_path: Path) -> None:
    """Not with an error of how its bytes are read."""

    class FullHome(LocalHome):
        def write(self, key: str, offset_bytes: int, data: bytes | memoryview) -> None:
            raise StoreFullError(errno.ENOSPC, "no space left")

    source = tmp_path / "large"
    source.write_bytes(b"x" * (3 << 20))
    upload = CheckpointUpload(FullHome(tmp_path / "home"), CHECKPOINT, rank=0)
    with pytest.raises(StoreFullError):
        upload.add_file("large", source)


def test_what_is_digested_is_what_is_stored_though_the_file_changes(tmp_path: Path) -> None:
    source = tmp_path / "large"
    source.write_bytes(b"a" * (48 << 20))

    class Meanwhile(LocalHome):
        def write(self, key: str, offset_bytes: int, data: bytes | memoryview) -> None:
            with source.open("r+b") as file:
                file.write(b"b" * (48 << 20))
            super().write(key, offset_bytes, data)

    home = Meanwhile(tmp_path / "home")
    upload = CheckpointUpload(home, CHECKPOINT, rank=0)
    upload.add_file("large", source)
    upload.seal()
    manifest = Committer(home.store).place(CHECKPOINT).manifest
    stored = (tmp_path / "home" / CHECKPOINT / "large").read_bytes()
    assert manifest.files[0].digest == digest_of(stored)


def test_a_file_that_shrinks_while_it_is_sent_is_stored_as_it_was_read(tmp_path: Path) -> None:
    source = tmp_path / "large"
    source.write_bytes(b"a" * (80 << 20))

    class Meanwhile(LocalHome):
        def write(self, key: str, offset_bytes: int, data: bytes | memoryview) -> None:
            source.write_bytes(b"")
            super().write(key, offset_bytes, data)

    upload = CheckpointUpload(Meanwhile(tmp_path / "home"), CHECKPOINT, rank=0)
    upload.add_file("large", source)
    assert upload.seal()
