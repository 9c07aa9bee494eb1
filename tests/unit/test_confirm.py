"""What a node confirms while its disk fails, or while somebody removes it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.handing import WHOLE, arrived, filled, report, sealed
from tests.unit.test_node_sender import FIRST, Shaky
from tune_sync.behind import confirm as confirming
from tune_sync.behind.confirm import confirm
from tune_sync.behind.node_disk import MAKING_DIR
from tune_sync.behind.node_sender import NodeSender
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.behind.staging_home import StagingHome
from tune_sync.homes.disk import remove_tree
from tune_sync.homes.store import LocalStore
from tune_sync.process import owned_name


def test_what_cannot_be_read_just_now_is_read_again_and_sent(
    local: StagingHome, home: Shaky, make: Callable[..., NodeSender],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    failed: list[Path] = []

    def fail_twice(file: Path, *_: object) -> str:
        if len(failed) < 2:
            failed.append(file)
            raise OSError(errno.EMFILE, "Too many open files")
        return digest_of(file)

    digest_of = confirming.digest_of_file
    monkeypatch.setattr(confirming, "digest_of_file", fail_twice)
    upload = report(local, filled(local))
    assert arrived(make, home, upload) == WHOLE
    assert len(failed) == 2


def test_what_is_removed_while_it_is_confirmed_is_not_made_again(
    root: Path, local: StagingHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload, copies, removed = report(local, filled(local)), StagedCopies(root), list[bool]()
    sync = LocalStore.sync

    def remove_before(store: LocalStore, key: str) -> None:
        removed.append(copies.remove(FIRST, upload.attempt))
        sync(store, key)

    monkeypatch.setattr(LocalStore, "sync", remove_before)
    confirm(copies, FIRST, sealed(root, upload))
    monkeypatch.undo()
    assert removed and not any(removed), "it stays until the next look"
    assert copies.remove(FIRST, upload.attempt)
    assert not list(copies.attempts())


def test_where_there_are_no_locks_it_is_durable_and_removed_all_the_same(
    root: Path, local: StagingHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("tune_sync.behind.staged_copy.fcntl.flock", refuse)
    upload, copies = report(local, filled(local)), StagedCopies(root)
    confirm(copies, FIRST, sealed(root, upload))
    assert sealed(root, upload).is_confirmed
    assert copies.remove(FIRST, upload.attempt)
    assert not list(copies.attempts())


def test_a_directory_that_cannot_be_removed_holds_nobody_up(
    root: Path, local: StagingHome, home: Shaky, make: Callable[..., NodeSender],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    dead = root / MAKING_DIR / owned_name().replace(f"-{os.getpid()}-", "-4194000-")
    dead.mkdir(parents=True)

    def refuse(path: Path) -> None:
        if path == dead:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        remove_tree(path)

    monkeypatch.setattr("tune_sync.homes.disk.remove_tree", refuse)
    assert arrived(make, home, report(local, filled(local))) == WHOLE
    assert dead.exists()
