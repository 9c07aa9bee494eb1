"""Storages are copied into a slot: from the CPU at once, from CUDA on a stream of our own.

A copy from CUDA runs beside the computation only if the slot's memory is *registered* with CUDA.
That is done once for each slot.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tune_sync.fastpath.slot import Slot
from tune_sync.fastpath.torch_archive import ArchiveRecord, CannotPlanError

logger = logging.getLogger(__name__)

# `cudaHostRegisterPortable`: for every GPU of this process.
_PORTABLE = 1
# Storages up to this size are copied on the GPU first, if the copies may overlap with training:
# buffers of modules and counters of steps change before the optimizer's next step.
SMALL_BYTES = 1 << 20


@dataclass(slots=True)
class Copies:
    """Copies that are on their way.

    Attributes:
        events: For each GPU: what happens when its copies are done.
        sources: Keeps the storages alive until then.
    """

    events: dict[torch.device, Any] = field(default_factory=dict)
    sources: list[Any] = field(default_factory=list)

    def wait(self) -> None:
        """Wait, on the CPU, until all bytes are there."""
        for event in self.events.values():
            event.synchronize()
        self.sources.clear()

    def hold_streams(self) -> None:
        """Make what is queued from now on, on each GPU's current stream, run after the copies."""
        for device, event in self.events.items():
            torch.cuda.current_stream(device).wait_event(event)


def check(records: list[ArchiveRecord]) -> None:
    """Raise CannotPlanError if there is a storage that is neither on the CPU nor on CUDA."""
    others = {r.storage.device.type for r in records} - {"cpu", "cuda"}
    if others:
        raise CannotPlanError(f"storages on {', '.join(sorted(others))}")


def start(records: list[ArchiveRecord], slot: Slot, *, overlap: bool) -> Copies:
    """Start copying `records` into `slot`, with their values as of now.

    Storages on the CPU are copied on return. Copies from CUDA wait for what is queued on the
    current stream of their GPU. What is queued on it afterwards waits for them: at once, or, with
    `overlap`, from the next step of any optimizer on.
    """
    memory = memory_of(slot)
    copies = Copies()
    by_device: dict[torch.device, list[ArchiveRecord]] = defaultdict(list)
    for record in records:
        by_device[record.storage.device].append(record)
    try:
        for device, group in by_device.items():
            if device.type == "cuda":
                _start_on(device, group, slot, memory, copies, overlap=overlap)
        for record in by_device[torch.device("cpu")]:
            _place(memory, record).copy_(_bytes_of(record.storage))
    except BaseException:
        copies.wait()
        raise
    if overlap and copies.events:
        _before_steps.add(copies)
    else:
        copies.hold_streams()
    return copies


def _start_on(
    device: torch.device,
    records: list[ArchiveRecord],
    slot: Slot,
    memory: torch.Tensor,
    copies: Copies,
    *,
    overlap: bool,
) -> None:
    register(slot, device)
    stream = _stream(device)
    with torch.cuda.device(device):
        sources = [_source(record, overlap=overlap) for record in records]
        copies.sources.extend(sources)
        stream.wait_stream(torch.cuda.current_stream(device))
        event = torch.cuda.Event(blocking=True)
        with torch.cuda.stream(stream):
            for record, source in zip(records, sources, strict=True):
                _place(memory, record).copy_(source, non_blocking=True)
            event.record(stream)
    copies.events[device] = event


def _source(record: ArchiveRecord, *, overlap: bool) -> torch.Tensor:
    source = _bytes_of(record.storage)
    return source.clone() if overlap and record.length_bytes <= SMALL_BYTES else source


def _bytes_of(storage: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _place(memory: torch.Tensor, record: ArchiveRecord) -> torch.Tensor:
    return memory[record.offset_bytes : record.offset_bytes + record.length_bytes]


_streams: dict[torch.device, Any] = {}
_memories: weakref.WeakKeyDictionary[Slot, torch.Tensor] = weakref.WeakKeyDictionary()
_registered: weakref.WeakSet[Slot] = weakref.WeakSet()
_registering = threading.Lock()


def _stream(device: torch.device) -> Any:
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


def memory_of(slot: Slot) -> torch.Tensor:
    """The bytes of a slot, as a tensor."""
    if slot not in _memories:
        _memories[slot] = torch.frombuffer(slot.memory, dtype=torch.uint8)
        slot.on_close.append(lambda: _forget(slot))
    return _memories[slot]


def register(slot: Slot, device: torch.device | None = None) -> None:
    """Register the memory of a slot with CUDA, if that is in use; once for each slot.

    Where CUDA refuses, copies block the caller until they are done; a warning says so.
    """
    if not torch.cuda.is_initialized():
        return
    with _registering:
        if slot in _registered:
            return
        address = memory_of(slot).data_ptr()
        with torch.cuda.device(device):
            failure = torch.cuda.cudart().cudaHostRegister(address, slot.capacity_bytes, _PORTABLE)
        _registered.add(slot)
        if int(failure) == 0:
            slot.on_close.insert(0, lambda: _unregister(address))
        else:
            logger.warning(
                "CUDA did not register %d bytes of shared memory (error %d): copies from the GPU "
                "are slow and block; look at ulimit -l", slot.capacity_bytes, int(failure),
            )  # fmt: skip


def _forget(slot: Slot) -> None:
    _memories.pop(slot, None)


def _unregister(address: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(address)


class _BeforeSteps:
    """Makes the next step of every optimizer wait for copies that overlap with training."""

    def __init__(self) -> None:
        self._copies: list[Copies] = []
        self._remove: Callable[[], None] | None = None

    def add(self, copies: Copies) -> None:
        if self._remove is None:
            self._remove = register_optimizer_step_pre_hook(self._hold).remove
        self._copies = [c for c in self._copies if c.sources]
        self._copies.append(copies)

    def _hold(self, *_: Any) -> None:
        for copies in self._copies:
            copies.hold_streams()


_before_steps = _BeforeSteps()
