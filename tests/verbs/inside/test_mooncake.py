"""Mooncake's engine behaves as a transport, between two sides of one process and of two."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.verbs.inside.keeper import LARGE_BYTES, TOKEN, keep, write
from tests.verbs.inside.others import Other, running
from tests.verbs.inside.sides import content, digest
from tests.verbs.inside.test_checkpoint import (
    PACKET_BYTES,
    SOON_S,
    packets,
    registered_count,
    stage,
    write_checkpoint,
)
from tune_sync.errors import PeerLostError
from tune_sync.fastpath import Slots
from tune_sync.fastpath.mooncake_engine import ANY, EngineMemory, checks, engine
from tune_sync.fastpath.slot import Slot
from tune_sync.fastpath.transports import (
    Limits,
    MooncakeTransport,
    Part,
    Shelf,
    TcpTransport,
    Transport,
)
from tune_sync.fastpath.transports.lending import Pinned
from tune_sync.fastpath.transports.mooncake_lane import MooncakeRegion
from tune_sync.testing.transport_contract import TransportContract

MIB = 1 << 20
HERE = "127.0.0.1"
BY = "mooncake"


class TestMooncake(TransportContract):
    def make_transport(self, token: bytes) -> Transport:
        return MooncakeTransport(token)

    def test_the_device_moves_the_bytes(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair:
            before = packets()
            pair.put("k", bytes(8 * MIB))
            written = packets()
            assert written - before >= 8 * MIB // PACKET_BYTES
            assert pair.get("k") == bytes(8 * MIB)
            assert packets() - written >= 8 * MIB // PACKET_BYTES

    def test_a_peer_without_it_is_served_by_tcp(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair:
            with TcpTransport(TOKEN).connect(pair.server.address) as plain:
                pair.put("k", b"abc", plain)
                assert pair.get("k", plain) == b"abc"
            assert pair.get("k") == b"abc"


@pytest.fixture
def keeper() -> Iterator[Other]:
    with running(keep, HERE, BY) as process:
        yield process


def test_all_steps_are_good_here() -> None:
    assert [check.name for check in checks() if check.is_good] == [
        "device", "permission", "link", "address", "extra", "provider", "lockable memory",
        "settings",
    ]  # fmt: skip


def test_a_checkpoint_is_replicated_and_its_slot_registered_once(
    keeper: Other, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path)
    staged = stage(tmp_path)
    transport, counts, before = MooncakeTransport(TOKEN), [], packets()
    with transport.connect(keeper.told) as peer, transport.register(staged.slot.memory) as region:
        files = [Part(at, at, length) for _, at, length in staged.names]
        for parts in (files, [Part(0, 0, staged.size_bytes)]):
            with peer.reserve("exp/checkpoint_000001", staged.size_bytes) as upload:
                upload.write(region, parts).wait(SOON_S)
                upload.publish()
            assert keeper.ask("digest", key="exp/checkpoint_000001") == digest(staged.slot.memory)
            counts.append(registered_count())
            peer.remove("exp/checkpoint_000001")
    assert packets() - before >= 2 * staged.size_bytes // PACKET_BYTES, "bytes took another way"
    assert counts[0] == counts[1]
    staged.slot.close()


def test_a_keeper_that_is_killed_is_lost_in_time(keeper: Other) -> None:
    transport = MooncakeTransport(TOKEN)
    with (
        transport.connect(keeper.told) as peer,
        transport.register(bytearray(LARGE_BYTES)) as region,
    ):
        upload = peer.reserve("k", LARGE_BYTES)
        transfer = upload.write(region, [Part(0, 0, LARGE_BYTES)])
        time.sleep(0.3)
        assert not transfer.is_over
        keeper.kill()
        started_s = time.monotonic()
        with pytest.raises(PeerLostError):
            transfer.wait(SOON_S)
        assert time.monotonic() - started_s < 40
        assert transfer.is_over


def test_a_writer_that_is_killed_leaves_nothing(keeper: Other) -> None:
    with running(write, keeper.told, BY) as writer:
        deadline_s = time.monotonic() + SOON_S
        while not keeper.ask("written_bytes") and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert keeper.ask("held_count") == 1
        writer.kill()
    deadline_s = time.monotonic() + SOON_S
    while keeper.ask("held_count") and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert keeper.ask("held_count") == 0
    transport, data = MooncakeTransport(TOKEN), content(MIB)
    with (
        transport.connect(keeper.told) as peer,
        transport.register(data) as region,
        peer.reserve("next", len(data)) as upload,
    ):
        upload.write(region, [Part(0, 0, len(data))]).wait(SOON_S)
        upload.publish()
    assert keeper.ask("digest", key="next") == digest(data)


def test_memory_that_was_taken_back_cannot_be_written_until_it_is_lent_again() -> None:
    ours, theirs = (engine(HERE, ANY, is_target=is_target) for is_target in (False, True))
    slot, data = Slot(Path("/dev/shm"), MIB), bytearray(b"\1" * MIB)
    pinned = Pinned(lambda memory: EngineMemory(theirs, memory))
    source = EngineMemory(ours, data)

    def write_it() -> bool | None:
        number = ours.start(source.address, target, MIB, is_write=True)
        while (done := ours.status(number)) is None:
            time.sleep(0.01)
        return done

    with memoryview(slot.memory) as block:
        target = pinned.of(block).target(block)
        assert write_it() and bytes(slot.memory) == data
        pinned.forget(block)
        slot.memory[:] = bytes(MIB)
        assert not write_it() and bytes(slot.memory) == bytes(MIB)
        assert pinned.of(block).target(block) == target
        assert write_it() and bytes(slot.memory) == data
        pinned.forget(block)
    source.close()
    slot.close()


def test_a_block_that_begins_late_is_not_written_into_memory_that_another_has_now() -> None:
    slots = Slots(Path("/dev/shm"), memory_limit_bytes=3 * MIB, max_checkpoints_in_memory=1)
    shelf, whole = Shelf(slots), [Part(0, 0, MIB)]
    old, new = bytearray(b"\1" * MIB), bytearray(b"\2" * MIB)
    impatient = MooncakeTransport(TOKEN, limits=Limits(1, stall_timeout_s=1.0))
    patient = MooncakeTransport(TOKEN, limits=Limits(1))
    with (
        impatient.serve(shelf, HERE) as server,
        patient.connect(server.address) as late,
        patient.connect(server.address) as other,
        patient.register(old) as slow,
        patient.register(new) as region,
    ):
        assert isinstance(slow, MooncakeRegion)
        with slow._lock:  # to pin it takes long
            transfer = late.reserve("late", MIB).write(slow, whole)
            began_s = time.monotonic()
            while shelf.held_count and time.monotonic() < began_s + SOON_S:
                time.sleep(0.05)
            upload = other.reserve("k", MIB)
            upload.write(region, whole).wait(SOON_S)
            upload.publish()
        with pytest.raises(PeerLostError):
            transfer.wait(SOON_S)
        with shelf.reading(upload.held.handle, 0, MIB) as view:
            assert bytes(view) == new
    shelf.close()
    slots.close()


def test_a_process_that_used_it_ends_well() -> None:
    code = (
        "from tune_sync.fastpath.mooncake_engine import ANY, engine\n"
        "for is_target in (True, False): print(engine('127.0.0.1', ANY, is_target=is_target).name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.split())) == 2
