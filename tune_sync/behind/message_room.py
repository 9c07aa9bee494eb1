"""`MessageRoom`: memory of this process that messages are sent from."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from tune_sync.fastpath.transports import Part, Region, Transport

Source = tuple[Region, Part]


class MessageRoom:
    """One lane's. Methods may be called from any thread.

    Where a transport pins memory, a message is copied into some that is registered once and kept:
    to pin the pages of each message costs more. Others send it from where it is.

    Args:
        transport: What sends from it.
        size_bytes: Of the largest message.
    """

    def __init__(self, transport: Transport, size_bytes: int) -> None:
        self._transport = transport
        self._size_bytes = size_bytes
        self._lock = threading.Lock()
        self._free: list[tuple[mmap.mmap, Region]] = []
        self._is_closed = False

    @contextmanager
    def holding(self, head: bytes, data: memoryview) -> Iterator[list[Source]]:
        """Regions that have a message, `head` and then `data`; each with where it belongs.

        Nothing may be under way from them when the block ends.
        """
        if self._transport.pins:
            with self._copied(head, data) as source:
                yield [source]
            return
        with ExitStack() as stack:
            found, at_bytes = [], 0
            for part in (memoryview(head), data):
                if len(part):
                    region = stack.enter_context(self._transport.register(part))
                    found.append((region, Part(0, at_bytes, len(part))))
                at_bytes += len(part)
            yield found

    def close(self) -> None:
        """Give the memory back."""
        with self._lock:
            self._is_closed = True
            free, self._free = self._free, []
        for memory, region in free:
            _close(memory, region)

    @contextmanager
    def _copied(self, head: bytes, data: memoryview) -> Iterator[Source]:
        with self._lock:
            kept = self._free.pop() if self._free else None
        memory, region = kept or self._make()
        try:
            region.view[: len(head)] = head
            region.view[len(head) : len(head) + len(data)] = data
            yield region, Part(0, 0, len(head) + len(data))
        except BaseException:
            _close(memory, region)  # a stream that did not end may still be at it
            raise
        with self._lock:
            is_kept = not self._is_closed
            if is_kept:
                self._free.append((memory, region))
        if not is_kept:
            _close(memory, region)

    def _make(self) -> tuple[mmap.mmap, Region]:
        # Shared, so that a process that forks meanwhile goes on with the pages that are pinned.
        memory = mmap.mmap(-1, self._size_bytes)
        try:
            return memory, self._transport.register(memory)
        except BaseException:
            memory.close()
            raise


def _close(memory: mmap.mmap, region: Region) -> None:
    region.close()
    with suppress(BufferError):  # somebody still looks at it: it goes with them
        memory.close()
