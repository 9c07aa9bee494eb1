"""A small file is replaced whole, whatever an earlier call has left."""

from __future__ import annotations

import errno
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.behind.state_copy import put_state
from tune_sync.errors import StoreFullError
from tune_sync.homes.lease import Lease, read_holder
from tune_sync.homes.replacing import replace_file
from tune_sync.homes.store import LocalStore
from tune_sync.layout import LEASE_KEY, attempt_key
from tune_sync.mirror.record import RECORD_KEY, MirrorRecord, load_record, save_record
from tune_sync.testing.crash_store import CrashStore
from tune_sync.testing.fault_store import Crashed, Fault, FaultStore, crash_at, full, os_error

KEY, OLD, NEW = "directory/file.json", b'{"a longer": "old body"}', b'{"a": 1}'
CHECKPOINT = "trial/checkpoint_000000"


def holding(data: bytes) -> CrashStore:
    disk = CrashStore()
    disk.make_dir("directory")
    replace_file(disk, KEY, data)
    disk.sync("")
    return disk


@pytest.mark.parametrize("when", ["before", "half", "after"])
def test_after_a_crash_at_any_call_it_is_the_old_file_or_the_new_one(when: str) -> None:
    for at_count in itertools.count(1):
        disk = holding(OLD)
        try:
            replace_file(FaultStore(disk, crash_at(at_count, when)), KEY, NEW)  # type: ignore[arg-type]
        except Crashed:
            for seed in range(6):
                assert disk.crash("tear", seed).read(KEY) in (OLD, NEW)
            replace_file(disk, KEY, NEW[:5])  # over what that has left
            assert disk.crash("lose").read(KEY) == NEW[:5]
        else:
            assert disk.crash("lose").read(KEY) == NEW
            return


def test_what_is_not_asked_to_be_durable_is_whole_and_survives_the_process() -> None:
    disk = holding(OLD)
    store = FaultStore(disk)
    replace_file(store, KEY, NEW, is_durable=False)
    assert disk.crash("kill").read(KEY) == NEW
    assert not [verb for verb, _ in store.calls if verb == "sync"]


@pytest.mark.parametrize("error", [full, os_error(errno.EIO)])
def test_an_error_leaves_the_old_file_and_nothing_else(error: Callable[[], BaseException]) -> None:
    disk = holding(OLD)
    store = FaultStore(disk, Fault(1, error, when="half", verbs=frozenset({"write_at"})))
    with pytest.raises(OSError):
        replace_file(store, KEY, NEW)
    assert [entry.key for entry in disk.list("directory")] == [KEY]
    assert disk.read(KEY) == OLD


def test_a_full_disk_is_told_as_such(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(StoreFullError, match="no space left"), store.room(tmp_path):
        replace_file(_Full(tmp_path), "file", NEW)


class _Full(LocalStore):
    def write_at(self, key: str, offset_bytes: int, data: bytes | memoryview) -> None:
        with self.room(self.path(key), len(data)):
            raise OSError(errno.ENOSPC, "no space left on device")


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(OLD)
    os.symlink(other, tmp_path / "file.new")
    replace_file(LocalStore(tmp_path), "file", NEW)
    assert other.read_bytes() == OLD
    assert (tmp_path / "file").read_bytes() == NEW


# Who replaces files beside the committer: a longer one was left by a call that was cut off.

LEFT = json.dumps({"left": "x" * 1000}).encode()


def test_a_mark_of_a_staged_attempt_is_whole(tmp_path: Path) -> None:
    copies = StagedCopies(tmp_path)
    copies.store.make_dir(attempt_key(CHECKPOINT, "a1"))
    copies.store.write_at(f"{attempt_key(CHECKPOINT, 'a1')}/stored.json.new", 0, LEFT)
    copies.stored(CHECKPOINT, "a1", "there")
    assert copies.stored_as(CHECKPOINT, "a1") == "there"


def test_a_late_mark_makes_no_attempt(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        StagedCopies(tmp_path).stored(CHECKPOINT, "a1", "there")
    assert not list(tmp_path.iterdir())


def test_a_copy_of_state_is_whole(tmp_path: Path) -> None:
    (tmp_path / ".tuner.pkl.new").write_bytes(LEFT)
    put_state(tmp_path, "tuner.pkl", b"state")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"tuner.pkl": b"state"}


def test_the_record_of_a_mirror_is_whole(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.make_dir(RECORD_KEY.rpartition("/")[0])
    store.write_at(f"{RECORD_KEY}.new", 0, LEFT)
    record = MirrorRecord("id", "there")
    save_record(store, record)
    assert load_record(store, "there") == record


def test_a_lease_is_whole(tmp_path: Path) -> None:
    (tmp_path / LEASE_KEY).parent.mkdir()
    (tmp_path / f"{LEASE_KEY}.new").write_bytes(LEFT)
    lease = Lease(tmp_path, "me")
    lease.acquire()
    try:
        holder = read_holder(tmp_path / LEASE_KEY)
        assert holder is not None and holder.owner == "me"
    finally:
        lease.release()
