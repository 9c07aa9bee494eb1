"""Replicas that come by TCP: put in their place whole, and nothing of what is refused or lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.clock import Clock
from tune_sync.agents.replica_home import ObjectStoreLane
from tune_sync.behind.node_copies import NodeCopies
from tune_sync.behind.replica_intake import DATA_BYTES, SLOT_BYTES, SLOTS_COUNT, EqualSlots, Intake
from tune_sync.behind.replica_lane import NO_SLOTS_S, TransportLane
from tune_sync.behind.replica_message import Message
from tune_sync.behind.replicas import Replicas
from tune_sync.errors import DamagedError, PathRefusedError, PeerRefusedError, StoreFullError
from tune_sync.fastpath.transports import TcpTransport, shelf
from tune_sync.fastpath.transports.shelf import StillReachedError
from tune_sync.homes.home import Piece
from tune_sync.layout import staged_key

pytestmark = pytest.mark.in_shared_memory

TOKEN, ATTEMPT, CHECKPOINT = b"t" * 32, "0" * 32, "t/checkpoint_000000"
WAIT_S = 60.0


class Place:
    """A node that takes replicas, on its disk."""

    def __init__(self, base: Path) -> None:
        self.root = base / "disk"
        self.replicas = Replicas(
            self.root, None, lambda trial: False, NodeCopies(self.root).remove, lambda: True
        )
        self.slots = EqualSlots(base)
        self.intake = Intake(self.slots, self.replicas)
        self.server = TcpTransport(TOKEN).serve(self.intake, "127.0.0.1")
        self.replicas.begin(CHECKPOINT, ATTEMPT, {}, "disk")

    def lane(self, token: bytes = TOKEN) -> TransportLane:
        transport = TcpTransport(token)
        instead = ObjectStoreLane(None)
        return TransportLane(transport, self.server.address, asked, instead, WAIT_S)

    def read(self, inner: str) -> bytes:
        return (self.root / staged_key(CHECKPOINT, ATTEMPT) / inner).read_bytes()


def asked(attempt: str, transport: str) -> str:
    return f"{attempt} came by {transport}"


def key(inner: str) -> str:
    return f"{staged_key(CHECKPOINT, ATTEMPT)}/{inner}"


OTHERS = key("file").replace(ATTEMPT, "1" * 32)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.server.close()
    made.slots.close()


def test_chunks_larger_than_a_message_and_batches_arrive(place: Place) -> None:
    lane, body = place.lane(), bytearray(b"0123456789" * (DATA_BYTES // 8))
    lane.send(ATTEMPT, Message.of_chunk(key("large"), 5, len(body)), body)
    copy, body[:] = bytes(body), bytes(len(body))  # may change on return
    pieces = [Piece(key("a/one"), 0, 4), Piece(key("two"), 4, 0), Piece(key("three"), 4, 2)]
    lane.send(ATTEMPT, Message.of_batch(pieces), b"one!3!")
    lane.send(ATTEMPT, Message.of_chunk(key("large"), 0, 5), memoryview(b"start"))
    place.intake.flush(ATTEMPT, WAIT_S)
    assert place.read("large") == b"start" + copy
    assert [place.read(n) for n in ("a/one", "two", "three")] == [b"one!", b"", b"3!"]
    assert place.intake.held_count == 0
    lane.close()


def test_a_batch_whose_names_need_more_than_a_slot_is_cut(place: Place) -> None:
    lane = place.lane()
    names = [f"{'n' * 150}/{number}" for number in range(5000)]
    pieces = [Piece(key(name), at, 1) for at, name in enumerate(names)]
    data = bytes(at % 251 for at in range(len(names)))
    whole = Message.of_batch(pieces)
    assert len(whole.to_json()) > SLOT_BYTES - DATA_BYTES
    padded = bytearray(DATA_BYTES - 1)
    padded[: len(data)] = data
    tail = Piece(key("tail"), len(data), len(padded) - len(data))
    lane.send(ATTEMPT, Message.of_batch([*pieces, tail]), padded)
    place.intake.flush(ATTEMPT, WAIT_S)
    for at in (0, 1, 2499, 2500, 4999):
        assert place.read(names[at]) == data[at : at + 1]
    assert place.read("tail") == bytes(len(padded) - len(data))
    lane.close()


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message.of_chunk(key("../seal.json"), 0, 4), PathRefusedError),
        (Message.of_chunk("t/checkpoint_000000/file", 0, 4), PathRefusedError),
        (Message.of_chunk(OTHERS, 0, 4), FileNotFoundError),
        (Message.of_batch([Piece(key("file"), 0, 5)]), DamagedError),
        (
            Message.of_batch([Piece(k, 0, 4) for k in (key("file"), OTHERS)]),
            PathRefusedError,
        ),
    ],
)
def test_what_does_not_belong_there_is_told_to_who_sent_it_and_leaves_nothing(
    place: Place, message: Message, error: type[Exception]
) -> None:
    lane = place.lane()
    lane.send(ATTEMPT, message, b"1234")
    with pytest.raises(error):
        place.intake.flush(ATTEMPT, WAIT_S)
    place.intake.flush(ATTEMPT, WAIT_S)
    assert not [p for p in place.root.rglob("*") if p.is_file() and p.name != "writer.json"]
    assert place.intake.held_count == 0
    lane.close()


def test_without_slots_the_rest_goes_through_the_object_store_for_a_while_and_that_is_said(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Instead(ObjectStoreLane):
        def send(self, attempt: str, message: Message, data: Any) -> str:
            return f"{len(data)} bytes of {attempt}"

    taken = [place.slots.take(SLOT_BYTES, wait_s=WAIT_S) for _ in range(SLOTS_COUNT)]
    clock = Clock()
    transport, instead = TcpTransport(TOKEN), Instead(None)
    lane = TransportLane(transport, place.server.address, asked, instead, WAIT_S, clock)
    monkeypatch.setattr(shelf, "SLOT_WAIT_S", 0.05)
    message = Message.of_chunk(key("file"), 0, 4)
    for _ in range(2):
        assert lane.send(ATTEMPT, message, b"1234") == f"4 bytes of {ATTEMPT}"
    assert caplog.text.count("'object_store' is used") == 1
    for slot in taken:
        assert slot is not None
        place.slots.give_back(slot)
    assert lane.send(ATTEMPT, message, b"1234") is not None
    clock.now_s += NO_SLOTS_S
    assert lane.send(ATTEMPT, message, b"1234") is None
    place.intake.flush(ATTEMPT, WAIT_S)
    assert place.read("file") == b"1234"
    lane.close()


def test_slots_that_never_come_back_are_not_waited_for(place: Place) -> None:
    for number in range(SLOTS_COUNT):
        held = place.intake.reserve(f"{ATTEMPT}/x/{number}", 8)
        with pytest.raises(StillReachedError), place.intake.writing(held.handle, 0, 8):
            raise StillReachedError("its card was reset")
    lane, began_s = place.lane(), time.monotonic()
    with pytest.raises(StoreFullError):
        lane._put(ATTEMPT, b"{}", memoryview(b"1234"))
    assert time.monotonic() - began_s < shelf.SLOT_WAIT_S / 2
    lane.close()


def test_who_does_not_know_the_token_is_not_let_in(place: Place) -> None:
    with pytest.raises(PeerRefusedError):
        place.lane(b"x" * 32)


def test_a_message_that_says_it_is_longer_than_it_is_is_refused(place: Place) -> None:
    peer: Any = TcpTransport(TOKEN).connect(place.server.address)
    held = place.intake.reserve(f"{ATTEMPT}/x/0", 8)
    with place.intake.writing(held.handle, 0, 8) as view:
        view[:] = b"\xff\xff\xff\xff1234"
    place.intake.publish(held.handle)
    with pytest.raises(DamagedError, match="shorter"):
        place.intake.flush(ATTEMPT, WAIT_S)
    peer.close()
