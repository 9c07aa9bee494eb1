"""What peers may see of a host's memory: decided in one place, whatever the transport."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_sync.errors import ImmutableError, NotWholeError
from tune_sync.fastpath import Slots
from tune_sync.fastpath.transports import Shelf
from tune_sync.fastpath.transports.coverage import Coverage
from tune_sync.testing.transport_pair import CountingPool

SIZE = 40
ranges = st.tuples(st.booleans(), st.integers(0, SIZE), st.integers(0, SIZE))


@given(st.lists(ranges))
def test_coverage_is_a_set_of_bytes(steps: list[tuple[bool, int, int]]) -> None:
    coverage, there = Coverage(), set[int]()
    for is_added, start, end in steps:
        if is_added:
            coverage.add(start, end)
            there |= set(range(start, end))
        else:
            coverage.remove(start, end)
            there -= set(range(start, end))
        missing = [n for n in range(SIZE) if n not in there]
        gap = coverage.gap(SIZE)
        assert (gap is None) == (not missing)
        if gap is not None:
            last = next((n for n in range(gap[0], SIZE) if n in there), SIZE)
            assert gap == (missing[0], last)


@pytest.fixture
def pool(tmp_path: Path) -> CountingPool:
    return CountingPool(tmp_path)


def fill(shelf: Shelf, handle: bytes, start: int = 0, length: int = 100) -> None:
    with shelf.writing(handle, start, length) as view:
        view[:] = bytes(length)


def test_a_write_that_fails_takes_its_bytes_out_again(pool: CountingPool) -> None:
    shelf = Shelf(pool)
    held = shelf.reserve("k", 100)
    fill(shelf, held.handle)
    with pytest.raises(OSError), shelf.writing(held.handle, 10, 5):
        raise OSError
    with pytest.raises(NotWholeError, match="10 to 15"):
        shelf.publish(held.handle)


def test_a_write_that_fails_takes_out_what_another_wrote_meanwhile(pool: CountingPool) -> None:
    shelf = Shelf(pool)
    held = shelf.reserve("k", 100)
    with pytest.raises(OSError), shelf.writing(held.handle, 0, 100):
        fill(shelf, held.handle)
        raise OSError
    with pytest.raises(NotWholeError):
        shelf.publish(held.handle)


def test_nothing_is_published_while_somebody_writes(pool: CountingPool) -> None:
    shelf = Shelf(pool)
    held = shelf.reserve("k", 100)
    with shelf.writing(held.handle, 0, 100), pytest.raises(NotWholeError):
        shelf.publish(held.handle)
    with shelf.writing(held.handle, 5, 0), pytest.raises(NotWholeError, match="being written"):
        shelf.publish(held.handle)
    shelf.publish(held.handle)
    with pytest.raises(ImmutableError), shelf.writing(held.handle, 0, 1):
        pass


def test_memory_that_is_written_or_read_is_not_given_to_others(pool: CountingPool) -> None:
    shelf = Shelf(pool)
    late = shelf.reserve("late", 100)
    with shelf.writing(late.handle, 0, 100) as view:
        shelf.drop(late.handle)
        assert pool.used_bytes == 100
        view[:] = bytes(100)
    assert pool.used_bytes == 0
    read = shelf.reserve("read", 100)
    fill(shelf, read.handle)
    shelf.publish(read.handle)
    with shelf.reading(read.handle, 0, 100), shelf.reading(read.handle, 0, 1):
        shelf.remove("read")
        shelf.close()
        assert pool.used_bytes == 100 and shelf.find("read") is None
    assert pool.used_bytes == 0


def test_a_drop_of_what_is_published_does_nothing(pool: CountingPool) -> None:
    shelf = Shelf(pool)
    held = shelf.reserve("k", 100)
    fill(shelf, held.handle)
    shelf.publish(held.handle)
    shelf.drop(held.handle)
    assert shelf.find("k") == held and shelf.written_bytes == 100


def test_warm_slots_are_used_again(shared_memory: Path) -> None:
    slots = Slots(shared_memory, max_checkpoints_in_memory=1)
    shelf = Shelf(slots)
    seen = set()
    for number in range(3):
        held = shelf.reserve(f"{number}", 100)
        fill(shelf, held.handle)
        shelf.publish(held.handle)
        seen |= {path.name for path in slots.folder.iterdir()}
        shelf.remove(f"{number}")
    assert len(seen) == 1
    slots.close()
