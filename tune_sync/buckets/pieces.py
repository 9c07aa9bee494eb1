"""Pieces of an upload: bytes that nobody changes any more, and that are kept without a copy.

Buffers of megabytes come and go in many threads. The C library has an arena for each thread, and
keeps what was freed there: hundreds of MiB, where some 150 are in use. Pages go back at once.
"""

from __future__ import annotations

import mmap

from tune_sync.new_pages import new_pages


def piece_of(data: memoryview) -> memoryview:
    """The same bytes, as a piece: a copy in pages of its own, unless they are one already."""
    if is_piece(data):
        return data
    pages = new_pages(len(data))
    pages[: len(data)] = data
    return memoryview(pages)[: len(data)]


def is_piece(chunk: bytes | memoryview) -> bool:
    """Whether nobody changes a chunk any more: it is of Python's `bytes`, or was made as a piece.

    Whoever maps pages and hands out a view of them leaves them as they are from then on.
    """
    return isinstance(chunk, bytes) or isinstance(chunk.obj, bytes | mmap.mmap)


def kept(chunk: bytes | memoryview) -> bytes | memoryview:
    """The same bytes, as what a client may hold for as long as it likes."""
    return chunk if is_piece(chunk) else bytes(chunk)
