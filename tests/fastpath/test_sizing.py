from __future__ import annotations

import math

import pytest

from tune_sync.errors import ConfigError
from tune_sync.fastpath import shared_memory_bytes
from tune_sync.fastpath.sizing import shortage


@pytest.mark.parametrize(
    ("parameters", "hosts", "expected"),
    [(1_000_000_000, 1, 28_235_294_118), (7_000_000_000, 4, 49_411_764_706), (1, 1, 29)],
)
def test_two_slots_of_twelve_bytes_a_parameter_and_room_to_spare(
    parameters: int, hosts: int, expected: int
) -> None:
    assert shared_memory_bytes(parameters, host_count=hosts) == expected


def test_what_is_given_counts() -> None:
    assert shared_memory_bytes(100, slot_count=3, bytes_per_parameter=2, spare=0) == 600


def test_a_host_with_what_is_needed_has_room_for_a_limit_without_the_spare() -> None:
    total_bytes = shared_memory_bytes(850_000_000)
    limit_bytes = shared_memory_bytes(850_000_000, spare=0)
    assert not shortage(limit_bytes, total_bytes, total_bytes)
    assert shortage(limit_bytes, total_bytes - (1 << 20), total_bytes - (1 << 20))


@pytest.mark.parametrize(
    "wrong",
    [
        {"parameter_count": 0}, {"host_count": 0}, {"slot_count": 0},
        {"spare": 1.0}, {"spare": -0.1},
        {"bytes_per_parameter": math.nan}, {"bytes_per_parameter": math.inf},
        {"parameter_count": 1e308, "bytes_per_parameter": 1e10},
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        shared_memory_bytes(**{"parameter_count": 1, **wrong})  # type: ignore[arg-type]
