"""The size of parts: no file needs more of them than a store takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_sync.buckets.bucket import (
    MAX_OBJECT_BYTES,
    MAX_PART_BYTES,
    MAX_PARTS_COUNT,
    PART_BYTES,
    UNKNOWN_PART_BYTES,
    part_size_bytes,
)

MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40


@pytest.mark.parametrize(
    ("size_bytes", "part_bytes"),
    [
        (0, 16 * MIB), (1, 16 * MIB), (1 * MIB, 16 * MIB), (50 * GIB, 16 * MIB),
        (100 * GIB, 16 * MIB), (160_000 * MIB, 16 * MIB), (160_000 * MIB + 1, 17 * MIB),
        (500 * GIB, 52 * MIB), (5 * TIB, 525 * MIB),
    ],
)  # fmt: skip
def test_parts_grow_with_the_file(size_bytes: int, part_bytes: int) -> None:
    assert part_size_bytes(size_bytes) == part_bytes


@given(st.integers(0, MAX_OBJECT_BYTES))
def test_no_size_needs_too_many_parts_or_parts_of_a_refused_size(size_bytes: int) -> None:
    part_bytes = part_size_bytes(size_bytes)
    assert -(-size_bytes // part_bytes) <= MAX_PARTS_COUNT
    assert 5 * MIB <= PART_BYTES <= part_bytes <= MAX_PART_BYTES


def test_a_stream_of_unknown_length_may_have_hundreds_of_gigabytes() -> None:
    assert part_size_bytes(None) == UNKNOWN_PART_BYTES
    assert UNKNOWN_PART_BYTES * MAX_PARTS_COUNT > 150 * GIB
