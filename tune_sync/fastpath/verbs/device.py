"""An open device with its protection domain, and memory that it may reach."""

from __future__ import annotations

import ctypes
import errno
import mmap
import resource
import weakref
from dataclasses import dataclass
from typing import Any

from tune_sync.errors import ConfigError, StoreError, StoreFullError
from tune_sync.fastpath.verbs import library
from tune_sync.fastpath.verbs.endpoint import Window
from tune_sync.fastpath.verbs.handles import Handles
from tune_sync.fastpath.verbs.ports import Gid, Port

Memory = bytearray | memoryview | mmap.mmap

# More gain nothing, and each holds a buffer of the card.
MOST_READS = 16


class VerbsMemory:
    """Memory whose pages are pinned, so that the device reaches them. Costly: keep it.

    Attributes:
        address: Where it begins.
        length_bytes: Of it.
    """

    def __init__(self, device: Device, memory: Memory, access: int) -> None:
        self.length_bytes = memoryview(memory).nbytes
        self.address = address_of(memory)
        self._handles = device.handles
        pinned = _pinned(device.domain, self.address, self.length_bytes, access)
        self._region = self._handles.keep(pinned)
        self.local_key = int(self._region.lkey)
        self._remote_key = int(self._region.rkey)

    def window(self, offset_bytes: int, length_bytes: int) -> Window:
        """What another host needs to reach part of it.

        Raises:
            ConfigError: The part is not within it.
        """
        self.check(offset_bytes, length_bytes)
        return Window(self.address + offset_bytes, self._remote_key, length_bytes)

    def check(self, offset_bytes: int, length_bytes: int) -> None:
        """Raise ConfigError for a part that is not within it."""
        end_bytes = offset_bytes + length_bytes
        if min(offset_bytes, length_bytes) < 0 or end_bytes > self.length_bytes:
            raise ConfigError(
                f"{length_bytes} bytes at {offset_bytes} are not within {self.length_bytes}"
            )

    def close(self) -> None:
        """Unpin it; not while it is written or read. May be called twice."""
        self._handles.close(self._region)


@dataclass(frozen=True, slots=True)
class PortAddress:
    """The port of a device, and the address of it, that are used."""

    port: Port
    gid: Gid


class Device:
    """A device that is open. Methods may be called from any thread.

    Args:
        used: Which port of which device; `checks.find_port_address` finds it.

    Raises:
        TransportMissingError: It cannot be opened.
        StoreFullError: This process may open no more.
    """

    def __init__(self, used: PortAddress) -> None:
        self.used = used
        self.verbs = library.load()
        self.handles = Handles()
        # Who forgets to close one loses nothing but time: nobody uses it any more then.
        weakref.finalize(self, self.handles.close_all).atexit = False
        self.context = self.handles.keep(library.open_device(used.port.device))
        try:
            self.domain = self.handles.keep(self.context.alloc_pd())
        except OSError as error:
            raise library.no_more(f"domains of {used.port}", error) or error from error
        limits = self.context.query_device()
        self.read_count = max(1, min(MOST_READS, int(limits.max_qp_rd_atom)))

    def register(self, memory: Memory, *, remote: bool) -> VerbsMemory:
        """Pin memory.

        Args:
            memory: What cannot be written can be sent from only.
            remote: Whether other hosts may write and read it, if they are told its key.

        Raises:
            StoreFullError: The process may not pin so much.
            ConfigError: The memory is empty, or is `remote` and cannot be written.
        """
        flags, is_constant = self.verbs.AccessFlags, memoryview(memory).readonly
        access = 0 if is_constant else flags.LOCAL_WRITE
        if remote:
            if is_constant:
                raise ConfigError("memory that other hosts write has to be writable")
            access |= flags.REMOTE_WRITE | flags.REMOTE_READ
        return VerbsMemory(self, memory, int(access))

    def close(self) -> None:
        """Close it, and all that was made with it. May be called twice."""
        self.handles.close_all()


class _Buffer(ctypes.Structure):
    """Where Python writes what it knows of a piece of memory: Py_buffer."""

    _fields_ = (
        ("address", ctypes.c_void_p), ("owner", ctypes.c_void_p), ("length", ctypes.c_ssize_t),
        ("item_length", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("dimensions", ctypes.c_int),
        ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    )  # fmt: skip


def address_of(memory: Memory) -> int:
    """Where memory begins, also if it cannot be written, for which ctypes itself knows no way.

    Raises:
        ConfigError: It is empty.
    """
    found = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(memory), ctypes.byref(found), 0)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(found))
    if not found.length:
        raise ConfigError("memory for RDMA must not be empty")
    return int(found.address)


def _pinned(domain: Any, address: int, length_bytes: int, access: int) -> Any:
    try:
        return domain.reg_mr(address, length_bytes, access)
    except OSError as error:
        if error.errno not in (errno.ENOMEM, errno.EAGAIN, errno.EPERM):
            raise StoreError(
                f"the RDMA device cannot reach {length_bytes} bytes of memory: {error}; "
                "use memory of /dev/shm, not of a file on a disk"
            ) from error
        limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        allowed = "any" if limit == resource.RLIM_INFINITY else str(limit)
        raise StoreFullError(
            f"{length_bytes} bytes of memory cannot be pinned for RDMA: {error}; this process may "
            f"lock {allowed} bytes; raise that (ulimit -l unlimited, LimitMEMLOCK=infinity), and "
            "rdma.max of its container's control group"
        ) from error
