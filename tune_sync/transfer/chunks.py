"""Cuts what is written to a file object into chunks for a home, and digests it on the way."""

from __future__ import annotations

from collections.abc import Callable

import xxhash

from tune_sync.transfer.pages import Pages

# Large chunks move faster between nodes, small ones need less memory; see docs/benchmarks.md.
CHUNK_BYTES = 32 << 20
# Writes of this size leave at once; smaller ones are collected first, in memory of our own.
DIRECT_BYTES = 8 << 20
# What is collected of a file is in the heap up to this size: pages cost more time.
HEAP_BYTES = 1 << 20
# Files up to this size travel whole, in one message, alone or with others.
SMALL_BYTES = 1 << 20


class Chunks:
    """One file's bytes. Methods may be called from one thread at a time.

    Args:
        send: Takes the offset of a chunk in the file, and its bytes, which it does not keep.
    """

    def __init__(self, send: Callable[[int, memoryview], None]) -> None:
        self._send_chunk = send
        self._hash = xxhash.xxh3_128()
        self._failure: Exception | None = None
        self._heap = bytearray()
        self._pages: Pages | None = None
        self.sent_bytes = 0

    @property
    def digest(self) -> str:
        """xxh3_128 of all bytes so far, in hexadecimal."""
        return self._hash.hexdigest()

    @property
    def held(self) -> bytearray | memoryview:
        """What was collected and not sent."""
        return self._heap if self._pages is None else self._pages.data

    def write(self, data: bytes | memoryview) -> int:
        """Take bytes, and send full chunks. Returns how many were taken.

        Raises:
            Exception: What `send` raised, now or before: the file cannot become whole any more.
        """
        view = memoryview(data).cast("B")
        self._hash.update(view)
        taken_bytes = len(view)
        while view:
            if not self.held and len(view) >= min(DIRECT_BYTES, CHUNK_BYTES):
                size_bytes = min(len(view), CHUNK_BYTES)
                self._send(view[:size_bytes])
            else:
                size_bytes = min(len(view), CHUNK_BYTES - len(self.held))
                self._hold(view[:size_bytes])
                if len(self.held) == CHUNK_BYTES:
                    self.finish()
            view = view[size_bytes:]
        return taken_bytes

    def finish(self) -> None:
        """Send what is held. Raises as `write` does."""
        held, self._heap, self._pages = self.held, bytearray(), None
        if held or self._failure is not None:
            self._send(memoryview(held))

    def _hold(self, data: memoryview) -> None:
        if self._pages is None and len(self._heap) + len(data) > HEAP_BYTES:
            self._pages = Pages(CHUNK_BYTES)
            self._pages.add(self._heap)
            self._heap = bytearray()
        if self._pages is None:
            self._heap += data
        else:
            self._pages.add(data)

    def _send(self, data: memoryview) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            self._send_chunk(self.sent_bytes, data)
        except Exception as error:
            self._failure = error
            raise
        self.sent_bytes += len(data)
