"""A directory of this machine behaves as a store."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tune_sync.errors import PathRefusedError
from tune_sync.homes.store import LocalStore
from tune_sync.testing.store_contract import StoreContract


class TestLocalStore(StoreContract):
    def make_store(self, tmp_path: Path) -> LocalStore:
        return LocalStore(tmp_path / "root")

    def outside(self, tmp_path: Path) -> Path:
        return tmp_path / "root"

    def test_offsets_beyond_four_gigabytes(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.make_dir("d")
        store.write_at("d/sparse", 5 << 30, b"end")
        with open(tmp_path / "root/d/sparse", "rb") as file:
            file.seek(5 << 30)
            assert file.read() == b"end"
        assert store.read("d/sparse", (5 << 30) - 1) == b"\0end"

    def test_a_write_through_a_link_out_of_the_root_is_refused(self, tmp_path: Path) -> None:
        store, other = self.make_store(tmp_path), tmp_path / "other"
        store.make_dir("d")
        other.mkdir()
        (other / "file").write_bytes(b"mine")
        (tmp_path / "root/d/out").symlink_to(other)
        (tmp_path / "root/d/file").symlink_to(other / "file")
        (tmp_path / "root/d/new").symlink_to(other / "new")
        calls: list[Callable[[], None]] = [
            lambda: store.write_at("d/out/x", 0, b"x"),
            lambda: store.write_at("d/file", 0, b"x"),
            lambda: store.write_at("d/new", 0, b"x"),
            lambda: store.make_dir("d/out/x"),
            lambda: store.rename("d/out/file", "d/x"),
            lambda: store.link("d/out/file", "d/x"),
            lambda: store.remove("d/out/file"),
            lambda: store.remove_tree("d/out/sub"),
        ]
        for call in calls:
            with pytest.raises(PathRefusedError, match="link"):
                call()
        with pytest.raises(OSError):
            store.remove_tree("d/out")
        assert [(p.name, p.read_bytes()) for p in other.iterdir()] == [("file", b"mine")]

    def test_a_link_itself_can_be_removed(self, tmp_path: Path) -> None:
        store, target = self.make_store(tmp_path), tmp_path / "target"
        store.make_dir("")
        target.write_bytes(b"mine")
        (tmp_path / "root/out").symlink_to(target)
        store.remove("out")
        assert target.read_bytes() == b"mine" and not (tmp_path / "root/out").exists()

    def test_what_cannot_be_listed_is_not_taken_for_durable(self, tmp_path: Path) -> None:
        """A name of over 4096 characters is refused to everybody, whoever runs this."""
        store = self.make_store(tmp_path)
        store.make_dir("d")
        here = os.open(tmp_path / "root/d", os.O_RDONLY)
        for _ in range(17):
            os.mkdir("n" * 250, dir_fd=here)
            inner = os.open("n" * 250, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = inner
        os.close(here)
        with pytest.raises(OSError, match="File name too long"):
            store.sync_tree("d")

    def test_two_thousand_files_are_synced_and_listed(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.make_dir("d")
        for number in range(2_000):
            store.write_at(f"d/{number}", 0, b"x")
        store.sync_tree("d")
        assert len(store.list("d")) == 2_000
