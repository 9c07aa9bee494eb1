"""Memory that is given back cannot be written any more by whoever it was lent to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.verbs.inside.sides import Here
from tune_sync.errors import TuneSyncError
from tune_sync.fastpath.slot import Slot
from tune_sync.fastpath.transports import RdmaTransport, Shelf, wire
from tune_sync.fastpath.transports.rdma_server import BY_RDMA
from tune_sync.fastpath.transports.stream import Stream
from tune_sync.fastpath.verbs.endpoint import Endpoint, Window
from tune_sync.fastpath.verbs.queue_pair import Move, QueuePair

TOKEN = b"the token of one run"
SIZE_BYTES = 1 << 20
STALL_S = 20.0


class AskingPool:
    """Asks something when a slot comes back."""

    def __init__(self) -> None:
        self.ask: Callable[[Slot], object] = lambda slot: None
        self.answers: list[object] = []
        self.is_back = threading.Event()

    def take(self, need_bytes: int, *, wait_s: float) -> Slot:
        return Slot(Path("/dev/shm"), need_bytes)

    def give_back(self, slot: Slot) -> None:
        self.answers.append(self.ask(slot))
        slot.close()
        self.is_back.set()

    def keep(self, slot: Slot) -> None: ...


@dataclass(frozen=True, slots=True)
class Borrower:
    """A peer that keeps to the protocol no longer than it likes."""

    pool: AskingPool
    control: Stream
    data: Stream
    pair: QueuePair
    window: Window
    move: Move


@pytest.fixture
def borrower(here: Here) -> Iterator[Borrower]:
    pool = AskingPool()
    shelf = Shelf(pool)
    with RdmaTransport(TOKEN).serve(shelf, "127.0.0.1") as server:
        open_stream = RdmaTransport(TOKEN)._opener(server.address)
        control, session = open_stream({})
        wire.send_frame(control, {"do": "reserve", "key": "k", "size_bytes": SIZE_BYTES})
        handle = wire.receive_frame(control)["handle"]
        data, _ = open_stream({"session": session["session"], **BY_RDMA})
        pair = QueuePair(here.device)
        pair.connect(Endpoint.parsed(wire.receive_frame(data)))
        wire.send_frame(data, pair.endpoint.fields())
        wire.receive_frame(data)
        block = {"do": wire.WRITE, "handle": handle, "offset_bytes": 0, "length_bytes": SIZE_BYTES}
        wire.send_frame(data, block)
        window = Window.parsed(wire.receive_frame(data))
        local = here.memory(bytearray(b"\1" * SIZE_BYTES))
        yield Borrower(
            pool, control, data, pair, window, Move(local, 0, window, 0, SIZE_BYTES, True)
        )
        control.close()
        data.close()
        pair.close()


def written(borrower: Borrower, slot: Slot) -> str:
    """Whether the borrower can still write, and what is in the memory then."""
    try:
        borrower.pair.wait(borrower.pair.start(borrower.move), STALL_S)
        outcome = "written"
    except TuneSyncError:
        outcome = "refused"
    return outcome + (" and changed" if bytes(slot.memory).strip(b"\0") else "")


def test_a_borrower_can_write_while_it_is_lent_to(borrower: Borrower) -> None:
    borrower.pair.wait(borrower.pair.start(borrower.move), STALL_S)
    wire.send_frame(borrower.data, {"digest": wire.digest_of(memoryview(b"another")).hex()})
    assert "not what was sent" in wire.receive_frame(borrower.data)["text"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("which", ["control", "data"])
def test_nobody_can_write_into_memory_that_is_back(borrower: Borrower, which: str) -> None:
    borrower.pool.ask = lambda slot: written(borrower, slot)
    if which == "control":
        borrower.control.cut()
    else:
        borrower.data.cut()
        time.sleep(0.2)
        borrower.control.cut()
    assert borrower.pool.is_back.wait(60)
    assert borrower.pool.answers == ["refused"]
