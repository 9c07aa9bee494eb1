"""What is registered of slots, and how long."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable

import pytest

from tune_sync.errors import StoreError, StoreFullError
from tune_sync.fastpath.transports.lending import Pinned


class _Registered:
    """Tells when it is closed, and closes when it may."""

    def __init__(self, told: list[str], may_close: threading.Event) -> None:
        self._told = told
        self._may_close = may_close
        told.append("registered")

    def close(self) -> None:
        self._told.append("closes")
        assert self._may_close.wait(60)
        self._told.append("closed")


def _pinned(told: list[str], may_close: threading.Event) -> Pinned[_Registered]:
    return Pinned(lambda memory: _Registered(told, may_close))


def _open() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


def _lend(pinned: Pinned[_Registered], slot: mmap.mmap) -> _Registered:
    with memoryview(slot) as block, block[1:] as part:
        return pinned.of(part)


def _in_thread(do: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=do)
    thread.start()
    return thread


def test_a_slot_is_registered_once() -> None:
    told: list[str] = []
    pinned, slot = _pinned(told, _open()), mmap.mmap(-1, 4096)
    assert _lend(pinned, slot) is _lend(pinned, slot)
    assert told == ["registered"]


def test_a_slot_that_is_gone_is_unregistered_at_once() -> None:
    told: list[str] = []
    pinned, slot = _pinned(told, _open()), mmap.mmap(-1, 4096)
    _lend(pinned, slot)
    del slot
    assert told == ["registered", "closes", "closed"]


def test_a_slot_that_was_closed_is_unregistered_before_another_is_registered() -> None:
    told: list[str] = []
    pinned, slot = _pinned(told, _open()), mmap.mmap(-1, 4096)
    _lend(pinned, slot)
    slot.close()
    other = mmap.mmap(-1, 4096)
    _lend(pinned, other)
    assert told == ["registered", "closes", "closed", "registered"]


def test_nothing_is_registered_while_another_thread_unregisters_what_is_gone() -> None:
    told: list[str] = []
    may_close = threading.Event()
    pinned, slots = _pinned(told, may_close), [mmap.mmap(-1, 4096)]
    _lend(pinned, slots[0])
    ending = _in_thread(slots.clear)
    while "closes" not in told:
        ending.join(0.01)
    other = mmap.mmap(-1, 4096)
    lending = _in_thread(lambda: _lend(pinned, other))
    lending.join(0.3)  # a wait that is too short misses the fault, and never fails
    may_close.set()
    for thread in (ending, lending):
        thread.join(60)
    assert told == ["registered", "closes", "closed", "registered"]


def test_what_goes_while_another_is_registered_is_unregistered_after_it() -> None:
    told: list[str] = []
    slots: list[mmap.mmap] = []

    def register(memory: mmap.mmap) -> _Registered:
        slots.clear()  # in this very thread: it must not wait for itself
        return _Registered(told, _open())

    pinned = Pinned(register)
    first, other = mmap.mmap(-1, 4096), mmap.mmap(-1, 4096)
    _lend(pinned, first)
    slots.append(first)
    del first
    _lend(pinned, other)
    assert told == ["registered", "registered", "closes", "closed"]


def test_a_slot_that_is_forgotten_is_registered_anew() -> None:
    told: list[str] = []
    pinned, slot = _pinned(told, _open()), mmap.mmap(-1, 4096)
    _lend(pinned, slot)
    with memoryview(slot) as block:
        pinned.forget(block)
        pinned.forget(block)
    _lend(pinned, slot)
    assert told == ["registered", "closes", "closed", "registered"]


def test_what_goes_while_another_cannot_be_registered_is_unregistered_after_it() -> None:
    told: list[str] = []
    slots: list[mmap.mmap] = []

    def register(memory: mmap.mmap) -> _Registered:
        if slots:
            slots.clear()
            raise StoreFullError("no more")
        return _Registered(told, _open())

    pinned = Pinned(register)
    first, other = mmap.mmap(-1, 4096), mmap.mmap(-1, 4096)
    _lend(pinned, first)
    slots.append(first)
    del first
    with pytest.raises(StoreFullError, match="no more"):
        _lend(pinned, other)
    assert told == ["registered", "closes", "closed"]


def test_what_cannot_be_unregistered_of_a_slot_that_is_gone_keeps_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[str] = []

    class Stuck(_Registered):
        def close(self) -> None:
            super().close()
            raise StoreError("it is stuck")

    pinned, slots = (
        Pinned(lambda memory: Stuck(told, _open())),
        [mmap.mmap(-1, 1), mmap.mmap(-1, 1)],
    )
    for slot in slots:
        _lend(pinned, slot)
    for slot in slots:
        slot.close()
    other = mmap.mmap(-1, 4096)
    _lend(pinned, other)
    assert told == [*2 * ["registered"], *2 * ["closes", "closed"], "registered"]
    assert caplog.text.count("it is stuck") == 2
    with memoryview(other) as block, pytest.raises(StoreError, match="it is stuck"):
        pinned.forget(block)
