"""Pieces of an upload, in pages of their own.

Buffers of megabytes come and go in many threads. The C library has an arena for each thread, and
keeps what was freed there: hundreds of MiB, where some 150 are in use. Pages go back at once.
"""

from __future__ import annotations

import mmap


def piece_of(data: memoryview) -> memoryview:
    """A copy of some bytes that nobody changes any more."""
    pages = mmap.mmap(-1, len(data))
    pages[:] = data
    return memoryview(pages)


def is_piece(chunk: bytes | memoryview) -> bool:
    """Whether a chunk was made by `piece_of`: it need not be copied to be kept."""
    return isinstance(chunk, memoryview) and isinstance(chunk.obj, mmap.mmap)
