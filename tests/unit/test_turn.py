"""Threads that copy take turns, and none of them stands still for longer than a call."""

from __future__ import annotations

import gc
import io
import threading
import time

import pytest

from tune_sync.transfer.turn import InTurn, Turn

TIMEOUT_S = 30.0


class Opener:
    """A thread that opens a file in turn, and lives on."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._end = threading.Event()
        self._opened = threading.Event()
        self.file: InTurn | None = None
        threading.Thread(target=self._open, daemon=True).start()

    def has_opened(self, wait_s: float = TIMEOUT_S) -> bool:
        return self._opened.wait(wait_s)

    def _open(self) -> None:
        self.file = InTurn(self._turn, io.BytesIO)
        self._opened.set()
        self._end.wait()


def test_a_second_thread_opens_once_the_first_has_closed_all() -> None:
    turn = Turn()
    one, two = InTurn(turn, io.BytesIO), InTurn(turn, io.BytesIO)  # one thread passes
    other = Opener(turn)
    one.close()
    one.close()
    assert not other.has_opened(0.1)
    two.close()
    assert other.has_opened()


def test_a_file_that_is_closed_by_another_thread_ends_the_turn() -> None:
    turn = Turn()
    file = InTurn(turn, io.BytesIO)
    other = Opener(turn)
    threading.Thread(target=file.close).start()
    assert other.has_opened()


def test_a_file_that_is_dropped_unclosed_ends_the_turn() -> None:
    turn = Turn()
    file = InTurn(turn, io.BytesIO)
    other = Opener(turn)
    assert not other.has_opened(0.1)
    del file
    gc.collect()
    assert other.has_opened()


def test_a_file_that_cannot_be_opened_or_closed_ends_the_turn() -> None:
    turn = Turn()

    def fail() -> None:
        raise OSError("no")

    class Broken(io.BytesIO):
        def close(self) -> None:
            raise OSError("no")

    with pytest.raises(OSError, match="no"):
        InTurn(turn, fail)
    with pytest.raises(OSError, match="no"):
        InTurn(turn, Broken).close()
    assert Opener(turn).has_opened()


def test_an_idle_thread_loses_its_turn_after_the_patience() -> None:
    turn = Turn(patience_s=0.5)
    start_s = time.monotonic()
    idle = InTurn(turn, io.BytesIO)
    other = Opener(turn)
    assert other.has_opened()
    assert 0.3 < time.monotonic() - start_s < TIMEOUT_S
    turn._patience_s = TIMEOUT_S  # nobody loses it again
    idle.close()  # late: the turn is the other's by now
    third = Opener(turn)
    assert not third.has_opened(0.1)
    assert other.file is not None
    other.file.close()
    assert third.has_opened()


def test_a_thread_inside_a_long_write_keeps_its_turn() -> None:
    turn, go_on = Turn(patience_s=0.5), threading.Event()
    in_time: list[bool] = []

    class Slow(io.BytesIO):
        def write(self, data: object) -> int:
            thread.start()
            threading.Timer(1.5, go_on.set).start()
            assert go_on.wait(TIMEOUT_S)
            return 1

    file = InTurn(turn, Slow)

    def waits() -> None:
        with_turn = InTurn(turn, io.BytesIO)
        in_time.append(go_on.is_set())
        with_turn.close()

    thread = threading.Thread(target=waits)
    file.write(b"x")
    file.close()
    thread.join(TIMEOUT_S)
    assert in_time == [True], "it went ahead while the other was writing"


def test_reads_and_writes_reach_the_file() -> None:
    file = InTurn(Turn(), lambda: io.BytesIO(b"hello"))
    assert file.read(2) == b"he"
    assert file.tell() == 2
    file.seek(0)
    assert file.write(b"J") == 1
    assert not file.closed
    file.close()
    assert file.closed
