"""Two sides of a transport in one process, and a pool that counts: for the contract suite."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tune_sync.fastpath.slot import Slot
from tune_sync.fastpath.transports import Held, Part, Peer, Server, Shelf, Transport

POOL_BYTES = 32 << 20
SOON_S = 60.0


class CountingPool:
    """Slots below one folder that are removed when they are given back.

    Attributes:
        used_bytes: Of the slots that are taken.
    """

    def __init__(self, folder: Path, limit_bytes: int = POOL_BYTES) -> None:
        self.used_bytes = 0
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()

    def take(self, need_bytes: int, *, wait_s: float) -> Slot | None:
        """A fresh slot, or None."""
        with self._lock:
            if self.used_bytes + need_bytes > self._limit_bytes:
                return None
            self.used_bytes += need_bytes
        return Slot(self._folder, need_bytes)

    def give_back(self, slot: Slot) -> None:
        """Remove it. Once: a second time is an error."""
        with self._lock:
            self.used_bytes -= slot.capacity_bytes
        slot.close()

    def keep(self, slot: Slot) -> None:
        """It stays taken."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sides of a transport, in one process.

    Attributes:
        pool: Of the shelf.
        shelf: What the peer reaches.
        server: Serves it.
        transport: That connected.
        peer: Reaches it.
    """

    pool: CountingPool
    shelf: Shelf
    server: Server
    transport: Transport
    peer: Peer

    def held(self, key: str) -> bytes | None:
        """What is visible under `key`, read without the transport."""
        found = self.shelf.find(key)
        if found is None:
            return None
        with self.shelf.reading(found.handle, 0, found.size_bytes) as view:
            return bytes(view)

    def hold(self, key: str, data: bytes) -> Held:
        """Make `data` visible under `key` without the transport."""
        held = self.shelf.reserve(key, len(data))
        with self.shelf.writing(held.handle, 0, len(data)) as view:
            view[:] = data
        self.shelf.publish(held.handle)
        return held

    def put(self, key: str, data: bytes, peer: Peer | None = None) -> None:
        """Write and publish with the transport."""
        with (
            self.transport.register(bytearray(data)) as region,
            (peer or self.peer).reserve(key, len(data)) as upload,
        ):
            upload.write(region, [Part(0, 0, len(data))]).wait(SOON_S)
            upload.publish()

    def get(self, key: str, peer: Peer | None = None) -> bytes:
        """Read all with the transport."""
        found = (peer or self.peer).find(key)
        assert found is not None
        data = bytearray(found.size_bytes)
        with self.transport.register(data) as region:
            (peer or self.peer).read(found, region, [Part(0, 0, len(data))]).wait(SOON_S)
        return bytes(data)


@contextmanager
def raises(kind: type[BaseException], text: str = "") -> Iterator[None]:
    """Expect an error whose message has `text`."""
    try:
        yield
    except kind as error:
        if text not in str(error):
            raise
        return
    raise AssertionError(f"no {kind.__name__}")


def wait_until(is_so: Callable[[], bool], timeout_s: float = SOON_S) -> None:
    """Wait for what happens soon."""
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline_s:
            raise AssertionError("it did not happen in time")
        time.sleep(0.005)
