"""The disk model behaves as a store, and loses what it has to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tune_sync.testing.crash_store import CrashStore
from tune_sync.testing.store_contract import StoreContract


class TestCrashStore(StoreContract):
    stores: dict[Path, CrashStore] = {}

    def make_store(self, tmp_path: Path) -> CrashStore:
        return self.stores.setdefault(tmp_path, CrashStore())


@pytest.fixture
def store() -> CrashStore:
    store = CrashStore()
    store.make_dir("d")
    store.write_at("d/file", 0, b"old bytes, durable")
    store.sync_tree("")
    return store


def test_a_killed_process_loses_nothing_but_syncs_nothing(store: CrashStore) -> None:
    store.write_at("d/file", 0, b"new")
    killed = store.crash("kill")
    assert killed.read("d/file") == b"new bytes, durable"
    assert killed.crash("lose").read("d/file") == b"old bytes, durable"


def test_unsynced_bytes_are_lost_kept_or_torn(store: CrashStore) -> None:
    store.write_at("d/file", 0, b"NEW BYTES, UNSYNCED")
    assert store.crash("lose").read("d/file") == b"old bytes, durable"
    assert store.crash("keep").read("d/file") == b"NEW BYTES, UNSYNCED"
    torn = {store.crash("tear", seed).read("d/file") for seed in range(30)}
    assert len(torn) > 3 and any(b"NEW" in data and b"durab" in data for data in torn)


def test_synced_bytes_need_their_entry_and_entries_their_bytes(store: CrashStore) -> None:
    store.write_at("d/new", 0, b"bytes")
    store.sync("d/new")
    assert store.crash("lose").info("d/new") is None
    store.write_at("d/other", 0, b"bytes")
    store.sync("d")
    after = store.crash("lose")
    assert after.read("d/new") == b"bytes" and after.read("d/other") == b""


def test_a_new_directory_needs_its_entry_too(store: CrashStore) -> None:
    store.make_dir("d/e/f")
    store.write_at("d/e/f/file", 0, b"x")
    store.sync_tree("d/e")
    assert store.crash("lose").info("d/e") is None
    store.sync("d")
    assert store.crash("lose").read("d/e/f/file") == b"x"


def test_a_rename_is_done_or_undone_and_durable_with_either_directory(store: CrashStore) -> None:
    store.make_dir("e")
    store.sync("")
    store.rename("d/file", "e/file")
    found = set()
    for seed in range(20):
        after = store.crash("tear", seed)
        found.add((after.info("d/file") is None, after.info("e/file") is None))
    assert found == {(True, False), (False, True)}
    for synced in ("d", "e"):
        again = store.crash("kill")
        again.sync(synced)
        assert again.crash("lose").info("e/file") is not None


def test_a_later_change_may_survive_an_earlier_one(store: CrashStore) -> None:
    store.write_at("d/first", 0, b"")
    store.write_at("d/second", 0, b"")
    names = {tuple(e.key for e in store.crash("tear", seed).list("d")) for seed in range(40)}
    assert ("d/file", "d/second") in names and ("d/file", "d/first") in names


def test_a_replaced_name_never_survives_what_replaced_it_first(store: CrashStore) -> None:
    store.make_dir("trash")
    store.make_dir("next")
    store.write_at("next/file", 0, b"n")
    store.sync_tree("")
    store.rename("d", "trash/d")
    store.rename("next", "d")
    for seed in range(40):
        after = store.crash("tear", seed)
        moved, replaced = after.info("trash/d") is not None, after.info("next") is None
        assert moved or not replaced
        assert after.info("d") is not None or (moved and not replaced)
    store.sync("trash")
    assert store.crash("lose").info("d") is None
