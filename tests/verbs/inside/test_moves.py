"""One-sided writes and reads between two processes, over a device of software."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.verbs.inside.sides import Here, content, digest, whole
from tune_sync.errors import ConfigError, DamagedError
from tune_sync.fastpath.verbs.endpoint import Endpoint, Window
from tune_sync.fastpath.verbs.ports import counters
from tune_sync.fastpath.verbs.queue_pair import CHUNK_BYTES, Move

MIB = 1 << 20
STALL_S = 20.0
# Of a connection between Ethernet cards that take packets of 9000 bytes.
PACKET_BYTES = 4096


def network_bytes() -> int:
    """What all network interfaces of the guest have sent."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split(":")[1].split()[8]) for line in lines)


@pytest.mark.parametrize("size_bytes", [1, 4096, CHUNK_BYTES, 3 * CHUNK_BYTES + 17, 20 * MIB])
def test_what_is_written_is_there(here: Here, size_bytes: int) -> None:
    there, data = here.other(size_bytes), content(size_bytes)
    move = whole(here.memory(data), there)
    there.pair.wait(move, STALL_S)
    assert move.is_over
    assert there.ask("digest") == digest(data)


@pytest.mark.parametrize("size_bytes", [1, 5 * CHUNK_BYTES + 3])
def test_what_is_read_is_here(here: Here, size_bytes: int) -> None:
    there, data = here.other(size_bytes), bytearray(size_bytes)
    expected = there.ask("fill", seed=7)
    there.pair.wait(whole(here.memory(data), there, is_write=False), STALL_S)
    assert digest(data) == expected


def test_parts_land_where_they_belong(here: Here) -> None:
    there, data = here.other(MIB), content(MIB)
    local = here.memory(data)
    expected = bytearray(MIB)
    moves = []
    for at_bytes, from_bytes, length_bytes in [(0, 500_000, 10), (700_001, 3, 4097), (9, 0, 0)]:
        expected[at_bytes : at_bytes + length_bytes] = data[from_bytes : from_bytes + length_bytes]
        move = Move(local, from_bytes, there.window, at_bytes, length_bytes, True)
        moves.append(there.pair.start(move))
    for move in moves:
        there.pair.wait(move, STALL_S)
    assert there.ask("digest") == digest(expected)


def test_the_device_says_that_it_moved_the_bytes(here: Here) -> None:
    size_bytes = 8 * MIB
    there, data = here.other(size_bytes), content(size_bytes)
    local = here.memory(data)
    before, network_before = counters("rxe0"), network_bytes()
    there.pair.wait(whole(local, there), STALL_S)
    after = counters("rxe0")
    sent = after["hw_counters/sent_pkts"] - before["hw_counters/sent_pkts"]
    received = after["hw_counters/rcvd_pkts"] - before["hw_counters/rcvd_pkts"]
    assert min(sent, received) >= size_bytes // PACKET_BYTES
    assert network_bytes() - network_before < MIB, "bytes took another way"
    assert there.ask("digest") == digest(data)


def test_the_other_process_does_nothing_for_it(here: Here) -> None:
    there, data = here.other(MIB), content(MIB)
    os.kill(there.process.pid, signal.SIGSTOP)
    there.pair.wait(whole(here.memory(data), there), STALL_S)
    os.kill(there.process.pid, signal.SIGCONT)
    assert there.ask("digest") == digest(data)


def test_memory_is_used_again_without_registering_it_again(here: Here) -> None:
    there, data = here.other(MIB), content(MIB)
    local = here.memory(data)
    for seed in range(3):
        data[:] = content(MIB, seed)
        there.pair.wait(whole(local, there), STALL_S)
        assert there.ask("digest") == digest(data)


def test_a_range_outside_is_refused_before_anything_is_sent(here: Here) -> None:
    there, local = here.other(MIB), here.memory(bytearray(MIB))
    for at, length in [(0, MIB + 1), (MIB - 1, 2), (-1, 1), (0, -1)]:
        with pytest.raises(ConfigError):
            there.pair.start(Move(local, at, there.window, 0, length, True))
        with pytest.raises(ConfigError):
            there.pair.start(Move(local, 0, there.window, at, length, True))


def test_what_is_told_is_plain_data_and_checked(here: Here) -> None:
    there = here.other(MIB)
    told = there.pair.endpoint.fields()
    assert Endpoint.parsed(told) == there.pair.endpoint
    assert Window.parsed(there.window.fields()) == there.window
    for wrong in [{}, told | {"mtu": 9}, told | {"gid": "zz"}, told | {"queue_pair": 1 << 24}]:
        with pytest.raises(DamagedError):
            Endpoint.parsed(wrong)
    with pytest.raises(DamagedError):
        Window.parsed(there.window.fields() | {"key": True})
