"""What a store does on a file system with bad manners, mounted for real."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.staged import CHECKPOINT, sealed
from tune_sync.behind.file_calls import copy_file
from tune_sync.errors import StoreFullError
from tune_sync.homes import disk
from tune_sync.homes.shared.home import SharedHome, SharedStore
from tune_sync.homes.store import LocalStore

Mount = Callable[..., Path]


@pytest.mark.parametrize("kind", [LocalStore, SharedStore])
def test_a_stale_handle_is_opened_again(mounted: Mount, kind: type[LocalStore]) -> None:
    store = kind(mounted(stale=True))
    store.make_dir("d")
    store.write_at("d/f", 0, b"0123")
    assert store.read("d/f", 1) == b"123"


def test_the_faults_are_really_there(mounted: Mount) -> None:
    at = mounted(
        stale=True, no_links=True, no_fsync=True, no_replace=True, no_directory_rename=True
    )
    (at / "d").mkdir()
    with pytest.raises(OSError) as stale:
        (at / "f").write_bytes(b"x")
    (at / "f").write_bytes(b"x")
    with pytest.raises(OSError) as link:
        os.link(at / "f", at / "g")
    (at / "g").touch()
    with pytest.raises(OSError) as replace:
        os.rename(at / "f", at / "g")
    with pytest.raises(OSError) as rename:
        os.rename(at / "d", at / "e")
    with pytest.raises(OSError) as fsync, open(at / "f") as file:
        os.fsync(file.fileno())
    codes = [found.value.errno for found in (stale, link, replace, rename, fsync)]
    assert codes == [errno.ESTALE, errno.EPERM, errno.EEXIST, errno.ENOTSUP, errno.ENOTSUP]


def test_without_hard_links_a_second_name_is_a_copy(mounted: Mount) -> None:
    store = SharedStore(mounted(no_links=True))
    store.write_at("a", 0, b"bytes")
    store.link("a", "b")
    assert store.read("b") == b"bytes"


def test_directories_that_cannot_be_synced_are_passed_over(mounted: Mount) -> None:
    store = SharedStore(mounted(no_fsync_of_directories=True))
    store.make_dir("d/e")
    store.write_at("d/e/f", 0, b"x")
    store.sync_tree("d")
    store.sync("d/e/f")


def test_files_that_cannot_be_synced_are_told_of_once(
    mounted: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SharedStore(mounted(no_fsync=True))
    disk._say_no_fsync.cache_clear()
    told: list[str] = []
    monkeypatch.setattr(disk.logger, "warning", lambda text, *args: told.append(text))
    for name in ("a", "b"):
        store.write_at(name, 0, b"x")
        store.sync(name)
    (text,) = told
    assert "cannot make files durable" in text


def test_a_removed_file_that_is_open_does_not_keep_its_directory_from_being_removed(
    mounted: Mount,
) -> None:
    at = mounted(held_open=True)
    home = SharedHome(at / "exp")
    home.publish(CHECKPOINT, False, [sealed(home.committer, {"a": b"1", "d/b": b"22"})])
    with open(at / "exp" / CHECKPOINT / "d/b", "rb") as reader:
        home.remove(CHECKPOINT)
        assert home.store.info(CHECKPOINT) is None
        assert reader.read() == b"22"
        left = [n for _, _, names in os.walk(at / "exp/.tune_sync/trash") for n in names]
        assert [name[:4] for name in left] == [".nfs"]
    home.committer.recover()
    assert not (at / "exp/.tune_sync/trash").exists()


def test_a_tree_that_cannot_be_removed_for_another_reason_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").touch()
    (tmp_path / "link").symlink_to(tmp_path / "d")
    with pytest.raises(OSError):
        disk.remove_tree(tmp_path / "link")


@pytest.mark.parametrize("kind", [LocalStore, SharedStore])
@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [("full", errno.ENOSPC, "no space left"), ("over_quota", errno.EDQUOT, "quota used up")],
)
def test_no_room_is_told_as_such_and_what_is_stored_stays(
    mounted: Mount, kind: type[LocalStore], fault: str, code: int, says: str
) -> None:
    kind(mounted()).write_at("old", 0, b"stored")
    store = kind(mounted(**{fault: True}))
    with pytest.raises(StoreFullError) as refusal:
        store.write_at("new", 0, b"x" * 1000)
    text = str(refusal.value)
    assert refusal.value.errno == code
    assert f"{store.root}/new: {says} (need 1000 bytes, free " in text and "make room" in text
    assert "beside what was written of it" in text
    assert store.read("old") == b"stored"


@pytest.mark.parametrize(("fault", "code"), [("full", errno.ENOSPC), ("over_quota", errno.EDQUOT)])
def test_a_copy_into_a_place_without_room_says_so_and_leaves_nothing(
    mounted: Mount, tmp_path: Path, fault: str, code: int
) -> None:
    (tmp_path / "source").write_bytes(b"x")
    at = mounted(**{fault: True})
    with pytest.raises(StoreFullError, match="target") as refusal:
        copy_file(tmp_path / "source", at / "target")
    assert refusal.value.errno == code
    assert os.listdir(at) == []
