"""Large writes to a local disk, past the page cache.

Bytes that are to be durable soon gain nothing from a cache that has to be filled first and written
out after: 1 GiB, written and synced, took 0.5 to 0.9 s this way, 0.08 s of them of a processor, and
1.3 to 4.3 s through the cache, nearly all of them of a processor (ext4 on a virtual disk). Who
reads the file next reads it from the disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tune_sync.homes.disk import UNSUPPORTED
from tune_sync.new_pages import new_pages

# A write of this size leaves for the disk at once.
LARGE_BYTES = 4 << 20

# Where a write past the cache may begin and end, in the file and in memory. No disk in use asks for
# more; one that does refuses the write.
ALIGNED_BYTES = 4096
# Bytes come from memory of any alignment, so they are copied through memory of this size: small
# enough for the caches of a processor, and large enough to keep a disk busy.
ROOM_BYTES = 4 << 20

_of_thread = threading.local()


def write_large(descriptor: int, offset_bytes: int, data: memoryview) -> int:
    """Write the beginning of `data`, past the page cache where that can be.

    Durable only after an fsync, as any write.

    Returns:
        How many bytes were written; 0 if all have to be written as usual.

    Raises:
        OSError: The disk is full, or fails. Some of it may be written.
    """
    whole_bytes = len(data) - len(data) % ALIGNED_BYTES
    if len(data) < LARGE_BYTES or offset_bytes % ALIGNED_BYTES or not _is_of_a_disk(descriptor):
        return 0
    done_bytes = 0
    with _past_the_cache(descriptor) as can_be:
        while can_be and done_bytes < whole_bytes:
            part = data[done_bytes : min(done_bytes + ROOM_BYTES, whole_bytes)]
            try:
                done_bytes += os.pwrite(descriptor, _aligned(part), offset_bytes + done_bytes)
            except OSError as error:
                if error.errno not in UNSUPPORTED:
                    raise
                break  # a disk of larger blocks
            if done_bytes % ALIGNED_BYTES:  # it is nearly full: the usual write says so
                break
    return done_bytes


def start_write_back(descriptor: int, offset_bytes: int, length_bytes: int) -> None:
    """Start writing pages to the disk, without waiting. Only a hint: `sync` makes them durable."""
    if hasattr(os, "posix_fadvise"):
        # On Linux this is what the advice does first; pages still being written stay cached.
        os.posix_fadvise(descriptor, offset_bytes, length_bytes, os.POSIX_FADV_DONTNEED)


def _is_of_a_disk(descriptor: int) -> bool:
    """Whether it is on a file system that has a block device below it.

    Others (network, FUSE, memory, overlays) wait for more than the bytes at each such write, or
    copy them all the same. Linux gives them the major number 0.
    """
    return os.major(os.fstat(descriptor).st_dev) != 0


@contextmanager
def _past_the_cache(descriptor: int) -> Iterator[bool]:
    """Within it, writes go past the page cache; False if there is no such way here."""
    direct = getattr(os, "O_DIRECT", 0)
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | direct)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        direct = 0
    try:
        yield bool(direct)
    finally:
        if direct:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)


def _aligned(data: memoryview) -> memoryview:
    """The same bytes where a disk can read them. They hold until this thread's next call."""
    room = getattr(_of_thread, "room", None)
    if room is None:
        room = _of_thread.room = new_pages(ROOM_BYTES)
    room[: len(data)] = data
    return memoryview(room)[: len(data)]
