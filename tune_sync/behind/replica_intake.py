"""`Intake`: replicas' bytes as they arrive in memory of this node, and their way into staging.

A message is one thing on a shelf: `<attempt>/<number>`, with a length, what `replica_message` says,
and the bytes. Once it is whole it is put where it belongs, and its memory takes the next one. So a
peer that dies leaves nothing, and needs no more memory than a few messages, whatever it sends.
"""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tune_sync.behind.replica_message import Message
from tune_sync.behind.replicas import Replicas
from tune_sync.errors import DamagedError, SyncTimeoutError
from tune_sync.fastpath import Slots
from tune_sync.fastpath.slot import Slot
from tune_sync.fastpath.transports import Held, Shelf

# The bytes of one message; and beside them what it says: batches of many small files need that.
DATA_BYTES = 17 << 20
SLOT_BYTES = DATA_BYTES + (1 << 20)
# One is put into its place while others arrive. All peers of a node share them.
SLOTS_COUNT = 4
WORKERS_COUNT = 2
LENGTH_BYTES = 4


class EqualSlots:
    """Slots of one size, so that each fits the next message. See `shelf.Pool`.

    Args:
        root: Shared memory.
    """

    def __init__(self, root: Path) -> None:
        self._slots = Slots(
            root, memory_limit_bytes=SLOTS_COUNT * (SLOT_BYTES + (1 << 20)),
            max_checkpoints_in_memory=SLOTS_COUNT,
            if_taken="more replicas arrive at once, and come by another way meanwhile",
        )  # fmt: skip

    def take(self, need_bytes: int, *, wait_s: float) -> Slot | None:
        """A slot, if it is large enough."""
        return self._slots.take(SLOT_BYTES, wait_s=wait_s) if need_bytes <= SLOT_BYTES else None

    def give_back(self, slot: Slot) -> None:
        """It may be filled again."""
        self._slots.give_back(slot)

    def keep(self, slot: Slot) -> None:
        """It never comes back."""
        self._slots.keep(slot)

    def close(self) -> None:
        """Give the memory back."""
        self._slots.close()


class Intake(Shelf):
    """See the module's text.

    Args:
        pool: Memory for messages.
        replicas: Where their bytes go.
    """

    def __init__(self, pool: EqualSlots, replicas: Replicas) -> None:
        super().__init__(pool)
        self._replicas = replicas
        self._workers = ThreadPoolExecutor(WORKERS_COUNT, "tune_sync-intake")
        self._pending_count: Counter[str] = Counter()
        self._arrived_bytes: Counter[str] = Counter()
        self._failed: dict[str, Exception] = {}
        self._changed = threading.Condition()

    def publish(self, handle: bytes) -> None:
        """See `Shelf.publish`. Its bytes are on their way to their place on return."""
        super().publish(handle)
        held = self.held(handle)
        attempt = held.key.partition("/")[0]
        with self._changed:
            self._pending_count[attempt] += 1
        self._workers.submit(self._put, attempt, held)

    def flush(self, attempt: str, timeout_s: float) -> int:
        """Return once all that arrived of an attempt is in its place.

        Returns:
            How many bytes that are, since it was flushed last.

        Raises:
            SyncTimeoutError: It took longer.
            Exception: What went wrong with it. Each is told once.
        """
        with self._changed:
            is_done = self._changed.wait_for(lambda: attempt not in self._pending_count, timeout_s)
            error = self._failed.pop(attempt, None)
            arrived_bytes = self._arrived_bytes.pop(attempt, 0)
        if error is not None:
            raise error
        if not is_done:
            raise SyncTimeoutError(f"what arrived was not written within {timeout_s:.0f} s")
        return arrived_bytes

    def forget(self, attempt: str) -> None:
        """Nobody asks for the failures of an attempt any more."""
        with self._changed:
            self._arrived_bytes.pop(attempt, None)
            self._failed.pop(attempt, None)

    def _put(self, attempt: str, held: Held) -> None:
        try:
            with self.reading(held.handle, 0, held.size_bytes) as view:
                self._put_in_place(attempt, view)
        except Exception as error:  # whoever flushes is told
            with self._changed:
                self._failed.setdefault(attempt, error)
        finally:
            self.remove(held.key)
            with self._changed:
                self._pending_count[attempt] -= 1
                if not self._pending_count[attempt]:
                    del self._pending_count[attempt]
                self._changed.notify_all()

    def _put_in_place(self, attempt: str, view: memoryview) -> None:
        said_bytes = int.from_bytes(view[:LENGTH_BYTES], "big")
        start = LENGTH_BYTES + said_bytes
        if start > len(view):
            raise DamagedError("a message of a replica is shorter than it says")
        message = Message.from_json(bytes(view[LENGTH_BYTES:start]), len(view) - start)
        with view[start:] as data:
            self._replicas.write(message.pieces, data, message.at_bytes)
            with self._changed:
                self._arrived_bytes[attempt] += len(data)
