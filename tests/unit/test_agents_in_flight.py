"""The budget for what is under way to the home, and whose failure is whose."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from dataclasses import dataclass, field

import pytest

from tune_sync.agents.in_flight import FAILED_KEPT, InFlight
from tune_sync.errors import HomeLostError

LIMIT_BYTES = 100
TIMEOUT_S = 60.0


@dataclass
class Wire:
    """Chunks that arrive when told to; `error` is what they then fail with."""

    arrived: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None

    def wait(self) -> None:
        assert self.arrived.wait(TIMEOUT_S)
        if self.error is not None:
            raise self.error


def in_flight() -> InFlight:
    return InFlight(LIMIT_BYTES, lambda wire: wire.wait())


def arrived(error: Exception | None = None) -> Wire:
    wire = Wire(error=error)
    wire.arrived.set()
    return wire


def test_sends_run_ahead_within_the_budget_and_then_wait_for_the_oldest() -> None:
    sent, first = in_flight(), Wire()
    sent.send("part", 60, lambda: first)
    sent.send("part", 40, lambda: Wire())
    third = threading.Thread(target=sent.send, args=("part", 50, lambda: arrived()))
    third.start()
    third.join(0.05)
    assert third.is_alive()
    first.arrived.set()
    third.join(TIMEOUT_S)
    assert not third.is_alive()


def test_many_threads_together_stay_within_the_budget() -> None:
    sent, lock, under_way = in_flight(), threading.Lock(), [0, 0]

    class Slow(Wire):
        def wait(self) -> None:
            time.sleep(0.001)
            with lock:
                under_way[0] -= 30

    def start() -> Wire:
        with lock:
            under_way[0] += 30
            under_way[1] = max(under_way)
        return Slow()

    def work(part: str) -> None:
        for _ in range(20):
            sent.send(part, 30, start)
        sent.flush(part)

    threads = [threading.Thread(target=work, args=(f"part{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert under_way == [0, 90]


def test_a_chunk_larger_than_the_budget_goes_alone() -> None:
    sent = in_flight()
    sent.send("part", 10, lambda: arrived())
    sent.send("part", 1000, lambda: arrived())
    sent.send("part", 10, lambda: arrived())
    sent.flush("part")


def test_a_failure_is_told_to_its_own_part_whoever_waited_for_it() -> None:
    sent = in_flight()
    sent.send("broken", 100, lambda: arrived(OSError("lost")))
    sent.send("sound", 100, lambda: arrived())  # waits for the chunk of the other
    sent.flush("sound")
    with pytest.raises(OSError, match="lost"):
        sent.flush("broken")


def test_a_failed_part_never_succeeds_again() -> None:
    sent = in_flight()
    sent.send("broken", 10, lambda: arrived(OSError("first")))
    sent.send("broken", 10, lambda: arrived(OSError("second")))
    for _ in range(2):
        with pytest.raises(OSError, match="first"):
            sent.flush("broken")
    with pytest.raises(OSError, match="first"):
        sent.send("broken", 10, lambda: pytest.fail("sent all the same"))
    sent.send("next", 100, lambda: arrived())  # and what it took of the budget is back
    sent.flush("next")


def test_a_wait_that_is_interrupted_is_no_word_that_the_chunk_arrived() -> None:
    sent = in_flight()

    class Interrupted(Wire):
        def wait(self) -> None:
            raise KeyboardInterrupt

    sent.send("other", 100, Interrupted)
    with pytest.raises(KeyboardInterrupt):
        sent.send("mine", 100, lambda: arrived())
    with pytest.raises(HomeLostError, match="other"):
        sent.flush("other")
    sent.send("mine", 100, lambda: arrived())  # and what it took of the budget is back
    sent.flush("mine")


class Chunk(bytearray):
    """Bytes of which it can be told whether anybody still holds them."""


def failing_to_arrive(sent: InFlight, part: str) -> weakref.ref[Chunk]:
    """Send a chunk that does not arrive, and be told so twice."""
    chunk = Chunk(b"bytes")
    sent.send(part, len(chunk), lambda: arrived(OSError(f"{part} lost")))
    for _ in range(2):
        with pytest.raises(OSError, match=f"{part} lost"):
            sent.flush(part)
    return weakref.ref(chunk)


def test_a_failure_that_is_kept_keeps_no_bytes() -> None:
    sent = in_flight()
    chunk = failing_to_arrive(sent, "broken")
    gc.collect()
    assert chunk() is None
    with pytest.raises(OSError, match="broken lost"):
        sent.flush("broken")


def test_failures_that_are_kept_are_bounded() -> None:
    sent = in_flight()
    for number in range(FAILED_KEPT + 1):
        failing_to_arrive(sent, f"part{number}")
    assert len(sent._failed) == FAILED_KEPT
    assert not sent._pending_count


def test_a_send_that_cannot_start_gives_its_room_back() -> None:
    sent = in_flight()

    def start() -> Wire:
        raise ValueError("no store")

    for _ in range(3):
        with pytest.raises(ValueError, match="no store"):
            sent.send("part", 80, start)
    sent.send("part", 100, lambda: arrived())
    sent.flush("part")


def test_flush_waits_for_chunks_that_another_thread_waits_for() -> None:
    sent, slow = in_flight(), Wire(error=OSError("lost"))
    sent.send("part", 100, lambda: slow)
    other = threading.Thread(target=sent.send, args=("other", 100, lambda: arrived()))
    other.start()
    time.sleep(0.05)  # it waits for the chunk of "part" now
    threading.Timer(0.05, slow.arrived.set).start()
    with pytest.raises(OSError, match="lost"):
        sent.flush("part")
    other.join(TIMEOUT_S)


class Told(threading.Condition):
    """Tells when somebody begins to wait, and has not let go of its lock."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.set()
        return super().wait(timeout)


def test_who_waits_for_room_takes_what_another_thread_has_sent_meanwhile() -> None:
    sent = in_flight()
    sent._changed = told = Told()
    second = threading.Thread(
        target=sent.send, args=("second", 100, lambda: arrived()), daemon=True
    )

    def start() -> Wire:
        second.start()
        assert told.waits.wait(TIMEOUT_S)
        return arrived()

    sent.send("first", 100, start)
    second.join(TIMEOUT_S)
    assert not second.is_alive()
