"""A checkpoint of many files, in the memory of another process and back, by RDMA."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.verbs.inside.keeper import LARGE_BYTES, TOKEN, keep, write
from tests.verbs.inside.others import Other, running
from tests.verbs.inside.sides import content, digest
from tune_sync.errors import PeerLostError
from tune_sync.fastpath.slot import Slot
from tune_sync.fastpath.transports import Part, RdmaTransport
from tune_sync.fastpath.verbs.ports import counters

MIB = 1 << 20
PACKET_BYTES = 4096
SOON_S = 60.0


@pytest.fixture
def keeper() -> Iterator[Other]:
    with running(keep, "127.0.0.1") as process:
        yield process


@dataclass(frozen=True, slots=True)
class Staged:
    """Files, one behind the other in a slot of shared memory."""

    slot: Slot
    names: list[tuple[str, int, int]]
    size_bytes: int


def packets() -> int:
    found = counters("rxe0")
    return min(found["hw_counters/sent_pkts"], found["hw_counters/rcvd_pkts"])


def write_checkpoint(folder: Path) -> None:
    """What a trial of deep learning leaves: large tensors, and many small files."""
    source = random.Random(3)
    sizes = [*(source.randrange(1, 40_000) for _ in range(150)), 5 * MIB + 1, 3 * MIB, 1]
    for number, size_bytes in enumerate(sizes):
        path = folder / f"rank_{number % 4}" / f"part_{number}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content(size_bytes, number))


def stage(folder: Path) -> Staged:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    size_bytes = sum(path.stat().st_size for path in files)
    slot, at, names = Slot(Path("/dev/shm"), size_bytes), 0, []
    for path in files:
        data = path.read_bytes()
        slot.memory[at : at + len(data)] = data
        names.append((str(path.relative_to(folder)), at, len(data)))
        at += len(data)
    return Staged(slot, names, size_bytes)


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): digest(path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_checkpoint_is_replicated_and_read_back(keeper: Other, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    source.mkdir()
    write_checkpoint(source)
    staged = stage(source)
    transport = RdmaTransport(TOKEN)
    before = packets()
    with (
        transport.connect(keeper.told) as peer,
        transport.register(staged.slot.memory) as region,
        peer.reserve("exp/trial/checkpoint_000001", staged.size_bytes) as upload,
    ):
        parts = [Part(at, at, length) for _, at, length in staged.names]
        upload.write(region, parts).wait(SOON_S)
        upload.publish()
    assert packets() - before >= staged.size_bytes // PACKET_BYTES, "bytes took another way"
    whole = digest(staged.slot.memory)
    assert keeper.ask("digest", key="exp/trial/checkpoint_000001") == whole

    received = bytearray(staged.size_bytes)
    before = packets()
    with transport.connect(keeper.told) as peer, transport.register(received) as region:
        held = peer.find("exp/trial/checkpoint_000001")
        assert held is not None
        peer.read(held, region, [Part(0, 0, held.size_bytes)]).wait(SOON_S)
    assert packets() - before >= staged.size_bytes // PACKET_BYTES, "bytes took another way"
    for name, at, length in staged.names:
        path = back / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(received[at : at + length])
    assert digests(back) == digests(source) and len(digests(back)) == 153
    staged.slot.close()


def registered_count() -> int:
    """How many pieces of memory the device knows, of all processes."""
    argv = ["rdma", "-j", "resource", "show"]
    done = subprocess.run(argv, check=True, text=True, capture_output=True)
    return sum(int(device["mr"]) for device in json.loads(done.stdout))


def test_a_slot_is_registered_once(keeper: Other) -> None:
    transport = RdmaTransport(TOKEN)
    counts = []
    with (
        transport.connect(keeper.told) as peer,
        transport.register(bytearray(MIB)) as region,
    ):
        for number in range(3):
            with peer.reserve(f"{number}", MIB) as upload:
                upload.write(region, [Part(0, 0, MIB // 2), Part(0, MIB // 2, MIB // 2)]).wait(
                    SOON_S
                )
                upload.publish()
            counts.append(registered_count())
            peer.remove(f"{number}")
    assert counts[0] >= 2, "one here, one there"
    assert len(set(counts)) == 1


def test_a_keeper_that_is_killed_is_lost_in_time(keeper: Other) -> None:
    transport = RdmaTransport(TOKEN)
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
        upload.drop()


def test_a_writer_that_is_killed_leaves_nothing(keeper: Other) -> None:
    with running(write, keeper.told) as writer:
        deadline_s = time.monotonic() + SOON_S
        while not keeper.ask("written_bytes") and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert keeper.ask("held_count") == 1
        writer.kill()
    deadline_s = time.monotonic() + SOON_S
    while keeper.ask("held_count") and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert keeper.ask("held_count") == 0
    transport = RdmaTransport(TOKEN)
    data = content(LARGE_BYTES // 64)
    with (
        transport.connect(keeper.told) as peer,
        transport.register(data) as region,
        peer.reserve("next", len(data)) as upload,
    ):
        upload.write(region, [Part(0, 0, len(data))]).wait(SOON_S)
        upload.publish()
    assert keeper.ask("digest", key="next") == digest(data)
