"""What fails says so in time, and lets go of the memory."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from tests.verbs.inside.sides import Here, There, content, cut_link, digest, whole
from tune_sync.errors import (
    ConfigError,
    PathRefusedError,
    PeerLostError,
    StoreError,
    SyncTimeoutError,
)
from tune_sync.fastpath.verbs.queue_pair import Move

MIB = 1 << 20
STALL_S = 30.0
LARGE_BYTES = 96 * MIB


def began(there: There, move: Move) -> None:
    """Wait until bytes move, and not all have."""
    deadline_s = time.monotonic() + STALL_S
    while not move.done_bytes and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert 0 < move.done_bytes < move.length_bytes


class Waiting:
    """A thread that waits for a move."""

    def __init__(self, there: There, move: Move, stall_timeout_s: float) -> None:
        self.error: Exception | None = None
        self._arguments = (there, move, stall_timeout_s)
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def failure(self, within_s: float) -> Exception | None:
        self._thread.join(within_s)
        assert not self._thread.is_alive(), f"still waiting after {within_s} s"
        return self.error

    def _wait(self) -> None:
        there, move, stall_timeout_s = self._arguments
        try:
            there.pair.wait(move, stall_timeout_s, watched=there.fileno())
        except Exception as error:
            self.error = error


def test_a_peer_that_is_killed_is_lost(here: Here) -> None:
    there, local = here.other(LARGE_BYTES), here.memory(bytearray(LARGE_BYTES))
    move = whole(local, there)
    waiting = Waiting(there, move, STALL_S)
    began(there, move)
    there.kill()
    assert isinstance(waiting.failure(STALL_S), PeerLostError)
    fresh, data = here.other(MIB), content(MIB)
    fresh.pair.wait(whole(here.memory(data), fresh), STALL_S)
    assert fresh.ask("digest") == digest(data), "the device works on"


@pytest.mark.usefixtures("mended")
def test_a_stall_ends_at_its_deadline(here: Here) -> None:
    there, local = here.other(LARGE_BYTES), here.memory(bytearray(LARGE_BYTES))
    move = whole(local, there)
    waiting = Waiting(there, move, 2.0)
    began(there, move)
    cut_link()
    # The deadline, or, where the device itself gives up sooner, its word.
    assert isinstance(waiting.failure(STALL_S), (SyncTimeoutError, PeerLostError))


def test_a_transfer_can_be_ended_by_another_thread(here: Here) -> None:
    there, local = here.other(LARGE_BYTES), here.memory(bytearray(LARGE_BYTES))
    move = whole(local, there)
    waiting = Waiting(there, move, STALL_S)
    began(there, move)
    there.pair.fail(PeerLostError("enough"))
    error = waiting.failure(STALL_S)
    assert str(error) == "enough"
    with pytest.raises(PeerLostError, match="enough"):
        there.pair.wait(whole(local, there), STALL_S)


def test_a_wrong_key_is_refused(here: Here) -> None:
    there, local = here.other(MIB), here.memory(bytearray(content(MIB)))
    empty = there.ask("digest")
    forged = replace(there.window, key=there.window.key ^ 0x5A5A)
    with pytest.raises(PathRefusedError):
        there.pair.wait(there.pair.start(Move(local, 0, forged, 0, MIB, True)), STALL_S)
    assert there.ask("digest") == empty


@pytest.mark.parametrize("offset_bytes", [-MIB, MIB, MIB - 1])
@pytest.mark.parametrize("is_write", [True, False])
def test_bounds_are_kept_by_the_device_itself(
    here: Here, offset_bytes: int, is_write: bool
) -> None:
    there, data = here.other(MIB), content(4096)
    empty = there.ask("digest")
    forged = replace(there.window, address=there.window.address + offset_bytes)
    move = Move(here.memory(data), 0, forged, 0, 4096, is_write)
    with pytest.raises(PathRefusedError):
        there.pair.wait(there.pair.start(move), STALL_S)
    assert there.ask("digest") == empty
    assert data == content(4096)


@pytest.mark.usefixtures("impatient")
def test_memory_that_was_taken_back_is_not_written_any_more(here: Here) -> None:
    there, data = here.other(MIB), content(MIB)
    there.ask("revoke")
    empty = there.ask("digest")
    with pytest.raises(StoreError):
        there.pair.wait(whole(here.memory(data), there), STALL_S)
    assert there.ask("digest") == empty


def test_memory_that_cannot_be_written_is_lent_to_nobody(here: Here) -> None:
    with pytest.raises(ConfigError, match="writable"):
        here.device.register(memoryview(bytes(4096)), remote=True)
    with pytest.raises(ConfigError, match="empty"):
        here.device.register(bytearray(), remote=False)
    there, data = here.other(MIB), bytes(content(MIB))
    there.pair.wait(whole(here.memory(memoryview(data)), there), STALL_S)
    assert there.ask("digest") == digest(data), "it is sent from"
