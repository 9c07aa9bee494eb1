"""What is being removed keeps nobody waiting who did not ask for it."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.unit.staged import CHECKPOINT, placed
from tune_sync import layout
from tune_sync.homes.commit import Committer
from tune_sync.homes.store import LocalStore
from tune_sync.publisher import Publisher

NEXT = "trial/checkpoint_000001"
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
