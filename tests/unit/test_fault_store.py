"""Faults happen at the call they are meant for, and nowhere else."""

from __future__ import annotations

import errno

import pytest

from tune_sync.errors import StoreFullError
from tune_sync.testing.crash_store import CrashStore
from tune_sync.testing.fault_store import (
    ALL_VERBS,
    Crashed,
    Fault,
    FaultStore,
    When,
    crash_at,
    full,
    os_error,
)


@pytest.fixture
def disk() -> CrashStore:
    disk = CrashStore()
    for number in range(4):
        disk.make_dir("d")
        disk.write_at(f"d/{number}", 0, b"0123")
    return disk


def test_an_error_comes_once_or_for_good(disk: CrashStore) -> None:
    once = FaultStore(disk, Fault(2, os_error(errno.EIO)))
    once.make_dir("a")
    with pytest.raises(OSError, match="Input/output"):
        once.make_dir("b")
    once.make_dir("c")
    assert [entry.key for entry in disk.list("")] == ["a", "c", "d"]
    lasting = FaultStore(disk, Fault(1, full, lasting=True, verbs=frozenset({"write_at"})))
    for _ in range(2):
        lasting.make_dir("e")
        with pytest.raises(StoreFullError):
            lasting.write_at("e/file", 0, b"x")
    assert disk.list("e") == []


def test_before_half_and_after(disk: CrashStore) -> None:
    written: dict[When, bytes] = {"before": b"0123", "half": b"ab23", "after": b"abcd"}
    for when, data in written.items():
        copy = disk.crash("kill")
        with pytest.raises(OSError):
            FaultStore(copy, Fault(1, os_error(errno.EIO), when=when)).write_at("d/0", 0, b"abcd")
        assert copy.read("d/0") == data
    left_counts: dict[When, int] = {"before": 4, "half": 2, "after": 0}
    for when, left in left_counts.items():
        copy = disk.crash("kill")
        with pytest.raises(OSError):
            FaultStore(copy, Fault(1, os_error(errno.EIO), when=when)).remove_tree("d")
        assert len(copy.list("d")) == left


def test_a_crash_is_no_exception_and_nothing_works_after_it(disk: CrashStore) -> None:
    store = FaultStore(disk, crash_at(1, "after"))
    with pytest.raises(Crashed):
        store.remove("d/0")
    with pytest.raises(Crashed):
        store.remove("d/1")
    with pytest.raises(Crashed):
        store.make_dir("new")
    assert [entry.key for entry in disk.list("d")] == ["d/1", "d/2", "d/3"]
    assert not issubclass(Crashed, Exception)


def test_calls_are_counted_by_verb(disk: CrashStore) -> None:
    store = FaultStore(disk)
    store.info("d/0")
    store.read("d/0")
    store.sync("d")
    assert (store.count(), store.count(ALL_VERBS)) == (1, 3)
    assert store.calls == [("info", "d/0"), ("read", "d/0"), ("sync", "d")]


def test_a_delay_waits_and_then_works(disk: CrashStore) -> None:
    waited: list[float] = []
    slow = Fault(1, lasting=True, verbs=frozenset({"read"}), delay_s=0.5)
    store = FaultStore(disk, slow, sleep=waited.append)
    assert store.read("d/0") == store.read("d/1") == b"0123"
    store.sync("d")
    assert waited == [0.5, 0.5]
