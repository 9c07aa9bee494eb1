"""How fast a transport moves memory: batches of blocks from several threads, for some seconds."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tune_sync.errors import StoreFullError
from tune_sync.fastpath.folder import SHARED_MEMORY
from tune_sync.fastpath.slots import HEADROOM_BYTES, Slots
from tune_sync.fastpath.transports import Part, Peer, Region, Shelf, Transfer, Transport

WRITE, READ = "write", "read"
BATCH_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """What is moved.

    Attributes:
        operation: "write" into the target's memory, or "read" from it.
        block_bytes: Each part of a batch.
        batch_count: Parts that are started and waited for together.
        thread_count: Threads that do so, each in a range of its own.
        duration_s: For how long.
    """

    operation: str
    block_bytes: int
    batch_count: int
    thread_count: int
    duration_s: float

    @property
    def batch_bytes(self) -> int:
        """Of one thread."""
        return self.block_bytes * self.batch_count

    @property
    def size_bytes(self) -> int:
        """Memory that is needed on each side."""
        return self.batch_bytes * self.thread_count


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured.

    Attributes:
        moved_bytes: By all threads.
        seconds: From the first batch's start to the last one's end.
        cpu_s: Of this process meanwhile.
        p50_s: Half of the batches took at most this.
        p99_s: Of a hundred batches, one took longer.
    """

    moved_bytes: int
    seconds: float
    cpu_s: float
    p50_s: float
    p99_s: float


def initiate(transport: Transport, address: str, load: Load) -> Result:
    """Move `load` to or from a target.

    Raises:
        StoreFullError: One of the sides has too little memory.
        TuneSyncError: What `connect` and transfers raise.
    """
    with ExitStack() as stack:
        limit_bytes = 2 * (load.size_bytes + HEADROOM_BYTES)
        slots = Slots(memory_limit_bytes=limit_bytes, max_checkpoints_in_memory=1)
        stack.callback(slots.close)
        slot = slots.take(load.size_bytes)
        if slot is None:
            raise StoreFullError(
                f"no {load.size_bytes} bytes of shared memory here; take smaller batches"
            )
        slot.memory[: len(_PATTERN)] = _PATTERN  # not only zeros
        region = stack.enter_context(transport.register(slot.memory))
        peer = stack.enter_context(transport.connect(address))
        return _measure(peer, region, load)


_PATTERN = os.urandom(1 << 16)


def _measure(peer: Peer, region: Region, load: Load) -> Result:
    key = f"bench/{secrets.token_hex(8)}"
    whole = [Part(0, 0, load.size_bytes)]
    with peer.reserve(key, load.size_bytes) as upload:
        upload.write(region, whole).wait(BATCH_TIMEOUT_S)
        if load.operation == WRITE:
            result = _run(load, lambda parts: upload.write(region, parts))
            upload.publish()
        else:
            upload.publish()
            result = _run(load, lambda parts: peer.read(upload.held, region, parts))
    peer.remove(key)
    return result


def _run(load: Load, start: Callable[[list[Part]], Transfer]) -> Result:
    stop_s = time.monotonic() + load.duration_s

    def loop(number: int) -> list[float]:
        first = number * load.batch_bytes
        offsets = range(first, first + load.batch_bytes, load.block_bytes)
        parts = [Part(at, at, load.block_bytes) for at in offsets]
        took: list[float] = []
        while not took or time.monotonic() < stop_s:
            began_s = time.monotonic()
            start(parts).wait(BATCH_TIMEOUT_S)
            took.append(time.monotonic() - began_s)
        return took

    began_s, cpu_s = time.monotonic(), time.process_time()
    with ThreadPoolExecutor(load.thread_count) as pool:
        all_took = sorted(s for took in pool.map(loop, range(load.thread_count)) for s in took)
    seconds = time.monotonic() - began_s
    return Result(
        len(all_took) * load.batch_bytes, seconds, time.process_time() - cpu_s,
        _percentile(all_took, 50), _percentile(all_took, 99),
    )  # fmt: skip


def _percentile(ordered: list[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


@dataclass(frozen=True, slots=True)
class Visit:
    """What one initiator did, as the target saw it.

    Attributes:
        written_bytes: That arrived.
        read_bytes: That were fetched.
        cpu_s: Of the target's process meanwhile.
    """

    written_bytes: int
    read_bytes: int
    cpu_s: float


def serve(
    transport: Transport, host: str, port: int, memory_bytes: int, root: Path = SHARED_MEMORY,
    *, on_ready: Callable[[str], None], on_visit: Callable[[Visit], None],
    stop: threading.Event, duration_s: float | None = None,
) -> None:  # fmt: skip
    """Hold memory for initiators, one at a time, until `stop` is set.

    Args:
        transport: They come by it.
        host: Address to listen on.
        port: 0: any.
        memory_bytes: Most that they may use.
        root: A directory in shared memory.
        on_ready: Called once, with the address.
        on_visit: Called when an initiator has left.
        stop: Ends it.
        duration_s: Ends it too.
    """
    deadline_s = time.monotonic() + duration_s if duration_s else float("inf")
    slots = Slots(root, memory_limit_bytes=memory_bytes, max_checkpoints_in_memory=1)
    shelf = Shelf(slots)
    try:
        with transport.serve(shelf, host, port) as server:
            on_ready(server.address)
            while not stop.is_set() and time.monotonic() < deadline_s:
                _watch(shelf, stop, on_visit)
    finally:
        shelf.close()
        slots.close()


_WATCH_PERIOD_S = 0.2


def _watch(shelf: Shelf, stop: threading.Event, on_visit: Callable[[Visit], None]) -> None:
    """Wait for one initiator to come and to leave, or a moment for none."""
    before = Visit(shelf.written_bytes, shelf.read_bytes, time.process_time())
    if stop.wait(_WATCH_PERIOD_S) or not shelf.held_count:
        return
    while shelf.held_count and not stop.wait(_WATCH_PERIOD_S):
        pass
    on_visit(
        Visit(
            shelf.written_bytes - before.written_bytes, shelf.read_bytes - before.read_bytes,
            time.process_time() - before.cpu_s,
        )
    )  # fmt: skip
