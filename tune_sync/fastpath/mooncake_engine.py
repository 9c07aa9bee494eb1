"""Mooncake's transfer engine: loaded when it is used, and told what it must not do by itself.

It moves memory over all cards of a host. Closed here: it takes TCP where it finds no card, and it
tries again by itself, with a key that it fetches anew: memory that was taken back from a peer
would be written again.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import ipaddress
import os
import socket
import stat
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from tune_sync.errors import (
    ConfigError,
    DamagedError,
    StoreError,
    StoreFullError,
    TransportMissingError,
)
from tune_sync.fastpath import environment
from tune_sync.fastpath.verbs.checks import (
    ANY,
    EXTRA,
    LOCKABLE,
    PERMISSION,
    PROVIDER,
    Check,
    Step,
    Wish,
    device_steps,
    done,
    first_bad,
    likely_device,
    lockable,
)
from tune_sync.fastpath.verbs.device import Memory, address_of
from tune_sync.fastpath.verbs.library import SYSTEM_LIBRARY
from tune_sync.fastpath.verbs.ports import DEV, SYS, ports

NAME = "mooncake"
INSTALL = "pip install 'tune-sync[mooncake]'"
# What reads these when it is loaded, for all of the process.
_LIBRARIES = ("mooncake.engine", "mooncake.store")
_VERBS = "libibverbs.so.1"
# "" stands for what must not be set.
_SETTINGS = {
    "MC_FORCE_HCA": "1",  # no card is an error
    "MC_FORCE_TCP": "",
    "MC_USE_TENT": "",  # another engine, of which nothing was shown
    "MC_USE_TEV1": "",
    "MC_RETRY_CNT": "1",  # what failed is not tried again with a new key
    "MC_DISABLE_METACACHE": "1",  # as keys change when memory was taken back
}
_DEFAULTS = {"MC_LOG_LEVEL": "ERROR", "MC_RDMA_NOTIFY_ENABLED": "0"}  # nobody is notified
# The last step of `checks`.
SETTINGS = "settings"
_NO_BATCH = (0, (1 << 64) - 1)


class _Library(Protocol):
    """What is used of the class `mooncake.engine.TransferEngine`."""

    def initialize(self, host: str, metadata: str, protocol: str, devices: str, /) -> int: ...

    def get_rpc_port(self) -> int: ...

    def register_memory(self, address: int, length_bytes: int, /) -> int: ...

    def unregister_memory(self, address: int, /) -> int: ...

    def batch_transfer_async_write(
        self, target: str, here: list[int], there: list[int], lengths: list[int], /
    ) -> int: ...

    def batch_transfer_async_read(
        self, target: str, here: list[int], there: list[int], lengths: list[int], /
    ) -> int: ...

    def transfer_check_status(self, batch: int, /) -> int: ...


@dataclass(frozen=True, slots=True)
class Target:
    """Memory of another process that may be written or read from here.

    Attributes:
        engine: Name of that process's engine.
        address: Where it begins, in that process.
    """

    engine: str
    address: int

    def fields(self) -> dict[str, Any]:
        """As it is sent."""
        return {"engine": self.engine, "address": self.address}

    @classmethod
    def parsed(cls, found: Mapping[str, Any]) -> Target:
        """What arrived.

        Raises:
            DamagedError: It is none.
        """
        match found:
            case {"engine": str(engine), "address": int(address)} if 0 < address < 1 << 64:
                host, _, port = engine.rpartition(":")
                with suppress(ValueError):
                    if ipaddress.IPv4Address(host) and 0 < int(port) < 1 << 16:
                        return cls(engine, address)
        raise DamagedError("what arrived describes no memory; use one version everywhere")


class EngineMemory:
    """Memory that an engine, and whoever reaches it, may write and read: its pages are pinned."""

    def __init__(self, engine: Engine, memory: Memory) -> None:
        self.address, self._length_bytes = address_of(memory), memoryview(memory).nbytes
        self._engine = engine
        self._lock = threading.Lock()
        if code := engine.library.register_memory(self.address, self._length_bytes):
            raise StoreFullError(
                f"Mooncake could not pin {self._length_bytes} bytes ({code}); raise `ulimit -l`, "
                "and register memory once, and only what can be written"
            )
        self._is_open = True

    def target(self, part: memoryview) -> Target:
        """What another process needs to reach `part` of it."""
        return Target(self._engine.name, address_of(part))

    def close(self) -> None:
        """Unpin it: what still is to write or read it fails. May be called twice.

        Raises:
            StoreError: The engine keeps it. Told once.
        """
        with self._lock:
            is_open, self._is_open = self._is_open, False
        if is_open and (code := self._engine.library.unregister_memory(self.address)):
            raise StoreError(
                f"Mooncake could not take back {self._length_bytes} bytes of memory ({code}), and "
                "who was told of them may still write there; see stderr, and end this process"
            )


class Engine:
    """One of this process. Methods may be called from any thread.

    It is never closed: its end would stop the process for a second, and its threads may be at work.

    Args:
        host: Address of this host at which other engines reach it.
        wish: Which device to use; all that fit where it names none.

    Attributes:
        name: For other engines.

    Raises:
        ConfigError: `host` is no IPv4 address that others reach.
        TransportMissingError: The extra is missing, or it does not work with the device.
    """

    def __init__(self, host: str, wish: Wish) -> None:
        try:
            is_reached = not ipaddress.IPv4Address(host).is_unspecified
        except ValueError:
            is_reached = False
        if not is_reached:
            raise ConfigError(
                f"Mooncake cannot listen for {host!r}; give the IPv4 address of this host that "
                "others reach"
            )
        self.library = _made(wish)
        if self.library.initialize(host, "P2PHANDSHAKE", "rdma", wish.device or ""):
            raise TransportMissingError(
                "Mooncake's engine does not start with the RDMA devices of this host; it has "
                "written why to stderr"
            )
        port = self.library.get_rpc_port()
        keep_from_children(port)
        self.name = f"{host}:{port}"

    def start(self, here: int, target: Target, length_bytes: int, *, is_write: bool) -> int:
        """Put bytes under way; returns a number for `status`, or 0 if it could not.

        Args:
            here: Where they are, or get, in this process; registered.
            target: Where they get, or are, in the other one.
            length_bytes: How many.
            is_write: From here to there; False: from there to here.
        """
        library = self.library
        do = library.batch_transfer_async_write if is_write else library.batch_transfer_async_read
        number = do(target.engine, [here], [target.address], [length_bytes])
        return 0 if number in _NO_BATCH else number

    def status(self, number: int) -> bool | None:
        """Whether it moved; None: it is under way. Not asked again after an answer."""
        found = self.library.transfer_check_status(number)
        return None if found == 0 else found == 1


def keep_from_children(port: int) -> None:
    """Keep the socket of a port from programs that this process starts.

    The library does not: such a program would keep the port after this process, and answer nobody.
    """
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                is_it = copy.getsockname()[1:2] == (port,)
            if is_it:
                os.set_inheritable(int(name), False)


_ENGINES: dict[tuple[object, ...], Engine] = {}
_ENGINES_LOCK = threading.Lock()


def engine(host: str, wish: Wish, *, is_target: bool) -> Engine:
    """This process's engine at an address. Raises as `Engine` does.

    Those that write to others, and those that others write to, are apart: two engines that
    connect to each other at once break each other's connection.
    """
    key = (os.getpid(), host, wish.device, is_target)
    with _ENGINES_LOCK:
        if key not in _ENGINES:
            _ENGINES[key] = Engine(host, wish)
        return _ENGINES[key]


def missing(wish: Wish = ANY, sys: Path = SYS, dev: Path = DEV) -> str:
    """The first step that fails; "" if the engine can be used. Arguments as for `checks`."""
    return first_bad(checks(wish, sys, dev))


def checks(wish: Wish = ANY, sys: Path = SYS, dev: Path = DEV) -> Iterator[Check]:
    """All steps in order; see `verbs.checks.checks`."""
    found = ports(sys, dev)
    yield from done(
        *device_steps(found, wish),
        Step(EXTRA, _extra),
        Step(PROVIDER, lambda: _provider(likely_device(found, wish)), (PERMISSION,)),
        Step(LOCKABLE, lambda: lockable(wish)),
        Step(SETTINGS, lambda: _settings(wish)),
    )


def _extra() -> Check:
    if importlib.util.find_spec(NAME) is None:
        return Check(EXTRA, f"the Python package {NAME} is not there", INSTALL)
    return Check(EXTRA, f"{NAME} is installed")


def _provider(device: str) -> Check:
    try:
        names = _device_names()
    except OSError as error:
        return Check(PROVIDER, str(error), SYSTEM_LIBRARY)
    if device not in names:
        listed = ", ".join(names) or "none"
        return Check(PROVIDER, f"the system's library knows {listed}, not {device}", (
            SYSTEM_LIBRARY
        ))  # fmt: skip
    return Check(PROVIDER, f"libibverbs knows {device}")


def _device_names() -> list[str]:
    """Of the devices that the system's library finds a provider for; loads nothing else."""
    verbs = ctypes.CDLL(_VERBS)
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    verbs.ibv_get_device_name.restype = ctypes.c_char_p
    count = ctypes.c_int()
    devices = verbs.ibv_get_device_list(ctypes.byref(count))
    if not devices:
        return []
    names = [verbs.ibv_get_device_name(ctypes.c_void_p(devices[n])) for n in range(count.value)]
    verbs.ibv_free_device_list(devices)
    return [name.decode() for name in names]


def _settings(wish: Wish) -> Check:
    is_loaded = any(name in sys.modules for name in _LIBRARIES)
    wrong = environment.otherwise(_wanted(wish), or_unset=is_loaded)
    if wrong:
        known = ", ".join(f"{name}={value}" for name, value in _wanted(wish).items() if value)
        return Check(SETTINGS, f"Mooncake is told otherwise by {', '.join(wrong)}", (
            f"set {known} and no others of these for the whole process (ray start)"
        ))  # fmt: skip
    return Check(SETTINGS, "no others in the environment")


def _wanted(wish: Wish) -> dict[str, str]:
    numbers = {"MC_IB_PORT": wish.port, "MC_GID_INDEX": wish.gid_index}
    return _SETTINGS | {name: str(n) for name, n in numbers.items() if n is not None}


def _made(wish: Wish) -> _Library:
    if not (done := _settings(wish)).is_good:
        raise TransportMissingError(f"Mooncake cannot be used in this process: {done}")
    environment.tell_library(_wanted(wish) | _DEFAULTS)
    try:
        module = importlib.import_module("mooncake.engine")
    except ImportError as error:
        lacking = INSTALL if importlib.util.find_spec(NAME) is None else SYSTEM_LIBRARY
        raise TransportMissingError(f"Mooncake cannot be used: {error}; {lacking}") from error
    return cast("_Library", module.TransferEngine())
