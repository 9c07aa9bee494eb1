"""Memory that a peer may still reach, as its device cannot be stopped, is used for nothing else."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tune_sync.errors import DamagedError, NotWholeError, StoreFullError
from tune_sync.fastpath import Slots
from tune_sync.fastpath.transports import Limits, Shelf, TcpTransport, wire
from tune_sync.fastpath.transports.lending import LendingServer
from tune_sync.fastpath.transports.shelf import SLOT_WAIT_S, StillReachedError
from tune_sync.fastpath.transports.stream import Stream
from tune_sync.fastpath.transports.tcp import listen
from tune_sync.fastpath.verbs.endpoint import Endpoint
from tune_sync.testing.transport_contract import TOKEN
from tune_sync.testing.transport_pair import CountingPool

SIZE_BYTES = 100
SOON_S = 10.0


class Stuck:
    """Lends memory, and does not get it back."""

    def lend(self, block: memoryview) -> dict[str, Any]:
        return {"lent": "all"}

    def take_back(self, block: memoryview) -> None:
        raise OSError(5, "Input/output error")


class StuckServer(LendingServer):
    by = "a card"

    @contextmanager
    def _lender(self, stream: Stream) -> Iterator[Stuck]:
        yield Stuck()


def holds_in_time(pool: CountingPool, used_bytes: int) -> bool:
    deadline_s = time.monotonic() + SOON_S
    while pool.used_bytes != used_bytes and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return pool.used_bytes == used_bytes


def test_what_cannot_be_taken_back_is_not_given_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = CountingPool(tmp_path)
    shelf = Shelf(pool)
    server = StuckServer(shelf, listen("127.0.0.1", 0), TOKEN, None, Limits())
    open_stream = TcpTransport(TOKEN)._opener(server.address)
    control, session = open_stream({})
    handles = []
    for name in ("lent", "not lent"):
        wire.send_frame(control, {"do": "reserve", "key": name, "size_bytes": SIZE_BYTES})
        handles.append(wire.receive_frame(control)["handle"])
    data, _ = open_stream({"session": session["session"], "by": StuckServer.by})
    assert wire.receive_frame(data) == {}  # what a lender says first
    place = {"handle": handles[0], "offset_bytes": 0, "length_bytes": SIZE_BYTES}
    with caplog.at_level(logging.ERROR):
        wire.send_frame(data, {"do": wire.WRITE, **place})
        assert wire.receive_frame(data) == {"lent": "all"}
        data.close()
        control.close()  # the session ends, and its attempts with it
        assert holds_in_time(pool, SIZE_BYTES)
        server.close()
    shelf.close()
    assert pool.used_bytes == SIZE_BYTES
    said = [record.getMessage() for record in caplog.records if "stay taken" in record.msg]
    assert len(said) == 1 and "Input/output error" in said[0]


def test_what_a_peer_may_still_write_never_becomes_whole(tmp_path: Path) -> None:
    pool = CountingPool(tmp_path)
    shelf = Shelf(pool)
    held = shelf.reserve("k", SIZE_BYTES)
    with pytest.raises(StillReachedError), shelf.writing(held.handle, 0, SIZE_BYTES):
        raise StillReachedError("its card was reset")
    with shelf.writing(held.handle, 0, SIZE_BYTES) as view:
        view[:] = bytes(SIZE_BYTES)
    with pytest.raises(NotWholeError, match="being written"):
        shelf.publish(held.handle)
    shelf.drop(held.handle)
    assert pool.used_bytes == SIZE_BYTES and shelf.held_count == 0


def test_what_a_peer_may_still_read_is_not_given_back(tmp_path: Path) -> None:
    pool = CountingPool(tmp_path)
    shelf = Shelf(pool)
    held = shelf.reserve("k", SIZE_BYTES)
    with shelf.writing(held.handle, 0, SIZE_BYTES) as view:
        view[:] = bytes(SIZE_BYTES)
    shelf.publish(held.handle)
    with pytest.raises(StillReachedError), shelf.reading(held.handle, 0, SIZE_BYTES):
        raise StillReachedError("its card was reset")
    with shelf.reading(held.handle, 0, SIZE_BYTES) as view:
        assert bytes(view) == bytes(SIZE_BYTES)
    shelf.remove("k")
    assert pool.used_bytes == SIZE_BYTES


def still_reached(shelf: Shelf, key: str, size_bytes: int) -> None:
    held = shelf.reserve(key, size_bytes)
    with pytest.raises(StillReachedError), shelf.writing(held.handle, 0, SIZE_BYTES):
        raise StillReachedError("its card was reset")
    shelf.drop(held.handle)


def test_nobody_waits_for_memory_that_never_comes_back(shared_memory: Path) -> None:
    slots = Slots(shared_memory, max_checkpoints_in_memory=2, memory_limit_bytes=16 << 20)
    shelf = Shelf(slots)
    for number in range(2):
        still_reached(shelf, f"k{number}", SIZE_BYTES)
    began_s = time.monotonic()
    with pytest.raises(StoreFullError, match="no memory"):
        shelf.reserve("next", SIZE_BYTES)
    assert time.monotonic() - began_s < SLOT_WAIT_S / 2
    slots.close()


def test_who_waits_already_as_the_last_is_lost_goes_on_at_once(shared_memory: Path) -> None:
    slots = Slots(shared_memory, max_checkpoints_in_memory=1, memory_limit_bytes=16 << 20)
    (slot, found) = slots.take(SIZE_BYTES), []
    assert slot is not None
    waits = threading.Thread(target=lambda: found.append(slots.take(SIZE_BYTES)))
    waits.start()
    waits.join(0.1)
    assert waits.is_alive(), "it is being filled, as far as anybody knows"
    slots.keep(slot)
    waits.join(SOON_S)
    assert found == [None]
    slots.close()


@pytest.mark.parametrize("port", [0, 256, True, "1", None])
def test_no_port_of_a_device_has_such_a_number(port: object) -> None:
    told = Endpoint(7, 8, 0, "0" * 32, 1, 5, 1).fields()
    assert Endpoint.parsed(told).port == 1
    with pytest.raises(DamagedError, match="no RDMA connection"):
        Endpoint.parsed({**told, "port": port})
