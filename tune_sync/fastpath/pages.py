"""Pages of shared memory: made and touched before they are needed, and counted."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tune_sync.fastpath.cgroups import left_bytes

# MADV_POPULATE_WRITE, Linux 5.14. Where memory runs out it fails; a plain touch kills the process.
_POPULATE_WRITE = 23
_CHUNK_BYTES = 64 << 20
# The kernel clears pages; more threads than this wait for each other.
MOST_THREADS = 12


def warm(descriptor: int, memory: mmap.mmap, threads: int | None = None) -> None:
    """Give every page of a mapped file its memory, and map it, in several threads.

    Raises:
        OSError: There is not so much memory. The pages that were made stay until the file goes.
    """
    size_bytes = len(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    chunks = [(o, min(_CHUNK_BYTES, size_bytes - o)) for o in range(0, size_bytes, _CHUNK_BYTES)]
    threads = threads or min(MOST_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(min(threads, len(chunks)), "warm") as pool:
        for _ in pool.map(lambda chunk: _touch(descriptor, address, *chunk), chunks):
            pass


def _touch(descriptor: int, address: int, offset_bytes: int, length_bytes: int) -> None:
    failure = _madvise()(address + offset_bytes, length_bytes, _POPULATE_WRITE)
    if failure == 0:
        return
    code = ctypes.get_errno()
    if code not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(errno.ENOSPC if code == errno.EFAULT else code, os.strerror(code))
    os.posix_fallocate(descriptor, offset_bytes, length_bytes)  # a kernel without the advice


def _madvise() -> Callable[[int, int, int], int]:
    call = ctypes.CDLL(None, use_errno=True).madvise
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return call


def room_bytes(root: Path) -> tuple[int, int]:
    """Free and total bytes of the file system of `root`."""
    found = os.statvfs(root)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def memory_available_bytes() -> int:
    """What the machine, or a container or job around this process, has left; -1 if unknown."""
    return min((n for n in (_machine_bytes(), left_bytes()) if n >= 0), default=-1)


def _machine_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return -1
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else -1
