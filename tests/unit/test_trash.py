"""What is being removed keeps nobody waiting who did not ask for it."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from tests.manifests import manifests_of
from tests.unit.staged import CHECKPOINT, placed
from tune_sync import layout
from tune_sync.errors import LeaseLostError, StoreFullError
from tune_sync.homes import commit as commit_module
from tune_sync.homes.commit import Committer
from tune_sync.homes.store import LocalStore
from tune_sync.homes.trash import finish_removals, gone_key, move_to_trash
from tune_sync.publisher import Publisher

NEXT = "trial/checkpoint_000001"
ALMOST_OURS = ".tune_sync-x/checkpoint_000000"
TIMEOUT_S = 60.0


class Large(LocalStore):
    """Removing a checkpoint takes until it is let go on."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def remove_tree(self, key: str) -> None:
        if self.info(f"{key}/large") is not None:
            self.begun.set()
            assert self.go_on.wait(TIMEOUT_S)
        super().remove_tree(key)


def test_state_does_not_wait_for_a_large_delete(tmp_path: Path) -> None:
    store = Large(tmp_path)
    committer = Committer(store)
    committer.record(placed(committer, {"large": b"many bytes"}))
    publisher = Publisher(committer)
    try:
        publisher.retire_now(CHECKPOINT)
        assert store.begun.wait(TIMEOUT_S)
        publisher.record_later(placed(committer, {"a": b"1"}, NEXT))
        publisher.drain(TIMEOUT_S)
        assert committer.manifest(NEXT) is not None and not store.go_on.is_set()
    finally:
        store.go_on.set()
        publisher.close(TIMEOUT_S)
    assert store.list(layout.TRASH_DIR) == []


def test_what_a_delete_that_was_cut_off_left_goes_with_the_next(tmp_path: Path) -> None:
    committer = Committer(LocalStore(tmp_path))
    left = f"{layout.TRASH_DIR}/left"
    committer.store.make_dir(left)
    committer.record(placed(committer, {"a": b"1"}))
    assert [entry.key for entry in committer.store.list(layout.TRASH_DIR)] == [left]
    committer.retire(CHECKPOINT)
    assert committer.store.list(layout.TRASH_DIR) == []


class Killed(BaseException):
    """The process is gone."""


class Full(LocalStore):
    """A move needs room that is not there; the process is killed when one file has gone."""

    def rename(self, source: str, target: str) -> None:
        if target.startswith(layout.TRASH_DIR):
            raise StoreFullError(errno.ENOSPC, "no space left; make room")
        super().rename(source, target)

    def remove_tree(self, key: str) -> None:
        if key in (CHECKPOINT, ALMOST_OURS):
            self.remove(f"{key}/a")
            raise Killed
        super().remove_tree(key)


def half_removed(root: Path) -> Committer:
    committer = Committer(LocalStore(root))
    for checkpoint in (CHECKPOINT, NEXT):
        committer.record(placed(committer, {"a": b"1", "b": b"2"}, checkpoint))
    with pytest.raises(Killed):
        Committer(Full(root)).retire(CHECKPOINT)
    assert [entry.key for entry in committer.store.list(CHECKPOINT)] == [f"{CHECKPOINT}/b"]
    return committer


def test_what_is_removed_in_place_on_a_full_disk_goes_wholly_after_a_kill(tmp_path: Path) -> None:
    committer = half_removed(tmp_path)
    committer.recover()
    assert committer.store.info(CHECKPOINT) is None
    assert [manifest.checkpoint for manifest in manifests_of(committer)] == [NEXT]
    assert sorted(e.key for e in committer.store.list(f"{layout.MANIFESTS_DIR}/trial")) == [
        layout.manifest_key(NEXT)
    ]


def test_a_trial_with_a_name_that_begins_like_ours_is_one(tmp_path: Path) -> None:
    committer = Committer(LocalStore(tmp_path))
    committer.record(placed(committer, {"a": b"1", "b": b"2"}, ALMOST_OURS))
    with pytest.raises(Killed):
        move_to_trash(Full(tmp_path), ALMOST_OURS, "x")
    assert committer.store.info(gone_key(ALMOST_OURS)) is not None


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_name_that_is_used_again_after_that_is_not_taken_for_what_was_removed(
    tmp_path: Path, *, is_recorded: bool
) -> None:
    committer = half_removed(tmp_path)
    manifest = placed(committer, {"c": b"3"})
    if is_recorded:
        committer.record(manifest)
    else:
        committer.store.remove_tree(layout.STAGING_DIR)  # whatever else is lost
    committer.recover()
    assert [entry.key for entry in committer.store.list(CHECKPOINT)] == [f"{CHECKPOINT}/c"]
    committer.retire(CHECKPOINT)
    assert [manifest.checkpoint for manifest in manifests_of(committer)] == [NEXT]


def test_a_checkpoint_behind_a_link_is_removed_on_a_full_disk(tmp_path: Path) -> None:
    class NoRoom(Full):
        def remove_tree(self, key: str) -> None:
            LocalStore.remove_tree(self, key)

    root = tmp_path / "root"
    committer = Committer(NoRoom(root))
    committer.record(placed(Committer(LocalStore(root)), {"a": b"1"}))
    (root / CHECKPOINT).rename(tmp_path / "moved")
    (root / CHECKPOINT).symlink_to(tmp_path / "moved")
    committer.retire(CHECKPOINT)
    assert not (root / CHECKPOINT).is_symlink()
    assert (tmp_path / "moved/a").read_bytes() == b"1"
    assert committer.store.list(f"{layout.MANIFESTS_DIR}/trial") == []


def test_who_has_lost_the_lease_goes_on_with_no_removal(tmp_path: Path) -> None:
    def lost() -> None:
        raise LeaseLostError("another run has it")

    store, checkpoint = LocalStore(tmp_path), "trial/checkpoint_000000"
    store.make_dir(checkpoint)
    store.make_dir(layout.parent(gone_key(checkpoint)))
    store.write_at(gone_key(checkpoint), 0, b"")
    with pytest.raises(LeaseLostError):
        finish_removals(store, lost)
    assert store.info(checkpoint) is not None
    finish_removals(store, lambda: None)
    assert store.info(checkpoint) is None


def test_a_delete_that_was_cut_off_before_its_move_goes_on_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*of: object) -> str:
        raise SystemExit

    committer = Committer(LocalStore(tmp_path))
    committer.record(placed(committer, {"a": b"1"}))
    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(commit_module, "move_to_trash", killed)
        committer.retire(CHECKPOINT)
    assert (tmp_path / CHECKPOINT).exists()
    Committer(LocalStore(tmp_path)).recover()
    assert not (tmp_path / CHECKPOINT).exists()
    assert committer.store.list(f"{layout.MANIFESTS_DIR}/trial") == []
