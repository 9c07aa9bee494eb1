"""A directory that is handed over: nothing is copied, and what arrives is what was reported."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.handing import (
    LARGE,
    SMALL,
    WHOLE,
    arrived,
    directory,
    filled,
    report,
    sealed,
    staged,
)
from tests.unit.test_node_sender import FIRST, SECOND, Shaky, until
from tune_sync import layout
from tune_sync.behind import staged_copy
from tune_sync.behind.confirm import confirm
from tune_sync.behind.left_behind import Claim, find, send_left
from tune_sync.behind.node_disk import MAKING_DIR, NodeDisk
from tune_sync.behind.node_sender import NodeSender
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.behind.staging_home import StagingHome
from tune_sync.errors import ConfigError, NotWholeError, StoreFullError, SyncTimeoutError
from tune_sync.homes.home import LocalHome
from tune_sync.manifest import seal_from_json, to_json, unite
from tune_sync.process import owned_name
from tune_sync.source import GivenHandler
from tune_sync.transfer.upload import CheckpointUpload


def test_files_move_and_all_that_was_reported_arrives(
    root: Path, local: StagingHome, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    made = filled(local)
    numbers = {name: (made / name).stat().st_ino for name in WHOLE}
    upload = report(local, made)
    assert not made.exists()
    data = staged(root, upload)
    assert {name: (data / name).stat().st_ino for name in WHOLE} == numbers
    assert upload.reported_as == f"{upload.attempt}@node1"
    assert arrived(make, home, upload) == WHOLE
    assert (home.root / FIRST / "empty").is_dir()
    manifest = home.committer.manifest(FIRST)
    assert manifest is not None
    assert all(len(file.digest) == 32 and not file.modified_ns for file in manifest.files)


def test_a_report_reads_no_bytes_and_syncs_none(
    root: Path, local: StagingHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = filled(local)
    for name in ("sync", "sync_tree", "read"):
        monkeypatch.setattr(f"tune_sync.homes.store.LocalStore.{name}", None)
    monkeypatch.setattr("tune_sync.homes.disk.fsync", None)
    monkeypatch.setattr("tune_sync.transfer.upload._copy_from", None)
    upload = report(local, made)
    monkeypatch.undo()
    seal = sealed(root, upload)
    assert {file.path: file.size_bytes for file in seal.files} == {
        name: len(body) for name, body in WHOLE.items()
    }
    assert {file.digest for file in seal.files} == {""}
    assert seal_from_json(to_json(seal), "here") == seal


def test_large_files_of_any_directory_are_staged_unread(
    tmp_path: Path, root: Path, local: StagingHome, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    source = tmp_path / "source"
    source.write_bytes(LARGE)
    upload = CheckpointUpload(local, FIRST, 0)
    upload.add_file("large", source)
    upload.copied(1)
    assert upload.seal()
    source.write_bytes(b"late")
    assert [(f.size_bytes, f.digest) for f in sealed(root, upload).files] == [(len(LARGE), "")]
    assert arrived(make, home, upload) == {"large": LARGE}


def test_it_can_be_read_on_its_node_at_once(local: StagingHome) -> None:
    report(local, filled(local))
    assert local.read(f"{FIRST}/large", 0, len(LARGE)) == LARGE


@pytest.mark.parametrize("way", ["file", "map", "process"])
def test_what_is_still_open_for_writing_is_stored_as_it_was_reported(
    local: StagingHome, home: Shaky, make: Callable[..., NodeSender], way: str
) -> None:
    made = filled(local)
    with (made / "large").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        if way == "map":
            file.close()
        if way == "process":
            mapped.close()
            code = "import os, sys; os.read(0, 1); os.pwrite(1, b'late', 0)"
            other = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=file
            )
            file.close()
        upload = report(local, made)
        if way == "map":
            mapped[:4] = b"late"
        elif way == "file":
            file.write(b"late")
            file.flush()
        else:
            other.communicate(b"x")
    assert arrived(make, home, upload) == WHOLE


@pytest.mark.parametrize("kind", ["bytes", "longer"])
def test_what_is_changed_where_nobody_tells_is_given_up_by_name_and_is_no_checkpoint(
    root: Path, local: StagingHome, home: Shaky, make: Callable[..., NodeSender],
    monkeypatch: pytest.MonkeyPatch, kind: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("tune_sync.behind.node_disk.is_being_written", lambda file: False)
    made = filled(local)
    with (made / "large").open("r+b" if kind == "bytes" else "ab") as file:
        upload = report(local, made)
        file.write(b"late")
    assert StagedCopies(root).newest_whole(FIRST) is None
    sender = make()
    news = until(sender, lambda n: bool(n.failed))
    assert "large" in news.failed[upload.attempt]
    assert "was changed after it was reported" in news.failed[upload.attempt]
    assert not news.stored
    assert not list(home.root.rglob("large"))
    assert StagedCopies(root).seal(FIRST, upload.attempt) is None


def test_what_changes_while_it_is_read_is_given_up(
    root: Path, local: StagingHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = report(local, filled(local))

    def read_and_change(file: Path, *_: object) -> str:
        file.write_bytes(b"late")
        return "0" * 32

    monkeypatch.setattr("tune_sync.behind.confirm.digest_of_file", read_and_change)
    with pytest.raises(Exception, match="was changed after"):
        confirm(StagedCopies(root), FIRST, sealed(root, upload))
    assert not list(root.rglob("seal.json"))


def test_after_a_reboot_it_is_whole_if_it_was_confirmed_and_else_not_there(
    root: Path, local: StagingHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = [report(local, filled(local), name) for name in (FIRST, SECOND)]
    copies = StagedCopies(root)
    confirm(copies, FIRST, sealed(root, uploads[0]))
    monkeypatch.setattr(staged_copy, "boot", lambda: "another")
    found = copies.newest_whole(FIRST)
    assert found is not None and found[1] == uploads[0].attempt
    assert copies.newest_whole(SECOND) is None


def test_it_is_durable_before_it_is_confirmed(
    root: Path, local: StagingHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = report(local, filled(local))
    synced: list[Path] = []

    def fsync(descriptor: int, path: Path) -> None:
        if path.name in ("one", "large", "nothing"):
            assert not sealed(root, upload).is_confirmed
            synced.append(path)

    monkeypatch.setattr("tune_sync.homes.disk.fsync", fsync)
    confirm(StagedCopies(root), FIRST, sealed(root, upload))
    assert sorted(path.name for path in synced) == ["large", "nothing", "one"]
    assert sealed(root, upload).is_confirmed


def test_it_is_made_durable_before_its_turn_to_be_sent(
    root: Path, local: StagingHome, make: Callable[..., NodeSender]
) -> None:
    upload = report(local, filled(local))
    sender = make(only_wanted=True)  # and nothing is wanted
    until(sender, lambda n: sealed(root, upload).is_confirmed and n.left_count == 1)
    assert list(root.rglob("seal.json"))


def test_a_restore_sends_what_dead_agents_have_left(
    root: Path, local: StagingHome, home: Shaky
) -> None:
    upload = report(local, filled(local))
    Claim(root, "s3://bucket/exp")
    (left,) = find(root.parents[1])
    with left.taken():
        assert send_left(left, home, lambda checkpoint: True) == [FIRST]
    home.committer.recover()
    assert (home.root / FIRST / "large").read_bytes() == LARGE
    assert upload.attempt


def test_parts_of_several_ranks_make_one_checkpoint(
    root: Path, local: StagingHome, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    uploads = []
    for rank in (0, 1):
        made = directory(local)
        (made / f"rank{rank}").write_bytes(LARGE)
        uploads.append(report(local, made, rank=rank, ranks_count=2))
    news = until(make(), lambda n: len(n.stored) == 2)
    placed = home.committer.place(FIRST, attempts=list(news.stored.values()))
    home.committer.record(placed.manifest)
    assert {f.path: (home.root / FIRST / f.path).read_bytes() for f in placed.manifest.files} == {
        "rank0": LARGE, "rank1": LARGE,
    }  # fmt: skip


def test_an_unconfirmed_part_is_never_published(root: Path, local: StagingHome) -> None:
    upload = report(local, filled(local))
    with pytest.raises(NotWholeError, match="not confirmed"):
        unite(FIRST, [sealed(root, upload)], strict=False)


def test_links_arrive_as_from_any_directory(
    tmp_path: Path, root: Path, local: StagingHome, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    made = filled(local)
    (made / "a" / "to_file").symlink_to("../large")
    (made / "to_dir").symlink_to("a")
    (made / "hard").hardlink_to(made / "large")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(SMALL)
    (made / "outside").hardlink_to(elsewhere)
    (made / "to_outside").symlink_to("outside")
    upload = report(local, made)
    elsewhere.write_bytes(b"late!")
    more = {"a/to_file": LARGE, "to_dir/one": SMALL, "to_dir/to_file": LARGE, "hard": LARGE}
    assert arrived(make, home, upload) == {**WHOLE, **more, "outside": SMALL, "to_outside": SMALL}
    assert (home.root / FIRST / "hard").samefile(home.root / FIRST / "large")


@pytest.mark.parametrize("where", ["first", "last", "copied", "mark"])
def test_wherever_the_disk_gets_full_the_whole_arrives_with_its_digests(
    root: Path, local: StagingHome, home: Shaky, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    made = filled(local)
    (made / "hard").hardlink_to(made / "large")
    full = StoreFullError(errno.ENOSPC, "no space left")
    moved: list[str] = []
    move, write = NodeDisk._is_moved, LocalHome.write

    def moves(self: NodeDisk, source: Path, key: str) -> bool:
        moved.append(key)
        if where == "first" or (where == "last" and len(moved) == len(WHOLE)):
            raise full
        return move(self, source, key)

    def writes(self: LocalHome, key: str, offset_bytes: int, data: bytes) -> None:
        if self.root == root:
            raise full
        write(self, key, offset_bytes, data)

    def refuses(*args: object) -> None:
        raise full

    monkeypatch.setattr(NodeDisk, "_is_moved", moves)
    monkeypatch.setattr(LocalHome, "write", writes)
    monkeypatch.setattr("tune_sync.behind.node_disk.copy_file", refuses)
    monkeypatch.setattr(LocalHome, "write_batch", _only_elsewhere(root, full))
    if where == "mark":
        monkeypatch.setattr(StagedCopies, "seal_for_now", refuses)
    if where == "copied":
        monkeypatch.setattr(
            "tune_sync.behind.node_disk.is_being_written", lambda file: file.name == "hard"
        )
    upload = report(local, made)
    assert "@" not in upload.reported_as
    placed = home.committer.place(FIRST, attempts=[upload.reported_as])
    home.committer.record(placed.manifest)
    found = {f.path: (home.root / FIRST / f.path).read_bytes() for f in placed.manifest.files}
    assert found == {**WHOLE, "hard": LARGE}
    assert all(len(file.digest) == 32 for file in placed.manifest.files)


def _only_elsewhere(root: Path, full: Exception) -> Callable[..., None]:
    write_batch = LocalHome.write_batch

    def writes(self: LocalHome, pieces: Any, data: Any) -> None:
        if self.root == root:
            raise full
        write_batch(self, pieces, data)

    return writes


def test_what_is_being_made_counts_and_whoever_makes_it_does_not_wait_again(
    root: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make(limit_bytes=len(LARGE))
    mine = StagingHome(home, root, sender, "node1", timeout_s=-1.0)
    made = filled(mine)
    with pytest.raises(SyncTimeoutError):
        StagingHome(home, root, sender, "node1", timeout_s=-1.0).begin(SECOND)
    home.is_up = False
    report(mine, made)
    with pytest.raises(SyncTimeoutError):
        mine.make_directory()


def test_what_a_killed_process_was_making_is_removed_and_what_lives_stays(
    root: Path, local: StagingHome, make: Callable[..., NodeSender]
) -> None:
    mine = filled(local)
    dead = root / MAKING_DIR / owned_name().replace(f"-{os.getpid()}-", "-4194000-")
    (dead / "sub").mkdir(parents=True)
    make().wake()
    assert (mine.exists(), dead.exists()) == (True, False)


def test_only_what_was_made_here_is_taken(tmp_path: Path, local: StagingHome, root: Path) -> None:
    upload = CheckpointUpload(local, FIRST, 0)
    elsewhere = tmp_path / "mine"
    elsewhere.write_bytes(SMALL)
    for source in (elsewhere, root / layout.seal_key(FIRST, "0" * 32)):
        assert local.take(upload.key("mine"), source, is_given=True) is None
    assert elsewhere.read_bytes() == SMALL


def test_it_is_reported_once(local: StagingHome) -> None:
    made = filled(local)
    given = GivenHandler(made)
    given._target = SimpleNamespace(send_file=lambda *_: None)  # type: ignore[assignment]
    given._send_to("there")
    with pytest.raises(ConfigError, match="reported before"):
        given.get_file_info([str(made)])


def test_a_longer_seal_stays_when_the_one_before_is_confirmed(
    root: Path, local: StagingHome
) -> None:
    upload = report(local, filled(local))
    first = sealed(root, upload)
    with upload.open("more") as stream:
        stream.write(SMALL)
    assert upload.seal()
    confirm(StagedCopies(root), FIRST, first)
    assert {file.path for file in sealed(root, upload).files} == {*WHOLE, "more"}


def test_what_was_digested_on_its_way_is_confirmed_too(
    root: Path, local: StagingHome, make: Callable[..., NodeSender]
) -> None:
    upload = CheckpointUpload(local, FIRST, 0)
    with upload.open("stream") as stream:
        stream.write(SMALL)
    upload.copied(1)
    assert upload.seal()
    assert not sealed(root, upload).is_confirmed
    sender = make(only_wanted=True)
    until(sender, lambda n: sealed(root, upload).is_confirmed and n.left_count == 1)
