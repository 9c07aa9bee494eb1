"""Whether this host can use RDMA, step by step. Each step says what to do if it fails."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tune_sync.errors import ConfigError, TransportMissingError, TuneSyncError
from tune_sync.fastpath.verbs import library
from tune_sync.fastpath.verbs.device import Device, PortAddress
from tune_sync.fastpath.verbs.ports import DEV, INFINIBAND, SYS, Gid, Port, ports
from tune_sync.fastpath.verbs.queue_pair import Move, QueuePair

LOOP_BYTES = 4096
LOOP_TIMEOUT_S = 10.0
# Below this the library itself may not work; a checkpoint needs its size.
LEAST_LOCKED_BYTES = 64 << 20
_CAP_IPC_LOCK = 14
# Names of the steps.
DEVICE, PERMISSION, LINK, ADDRESS = "device", "permission", "link", "address"
EXTRA, PROVIDER, LOCKABLE, LOOP = "extra", "provider", "lockable memory", "write to itself"
NOT_LOOKED_AT = "not looked at"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user wants to be used. None: what fits best.

    Attributes:
        device: Name, as `ibv_devices` lists it.
        port: From 1.
        gid_index: In the port's table.
        lock_bytes: Memory that will be pinned.
    """

    device: str | None = None
    port: int | None = None
    gid_index: int | None = None
    lock_bytes: int = LEAST_LOCKED_BYTES


ANY = Wish()


@dataclass(frozen=True, slots=True)
class Check:
    """One step.

    Attributes:
        name: What was looked at.
        found: What there is.
        remedy: How to get it right; "" if it is.
        needs: The step that has to be good before this one can be looked at; "" if it was.
    """

    name: str
    found: str
    remedy: str = ""
    needs: str = ""

    @property
    def is_good(self) -> bool:
        """Whether it was looked at, and is right."""
        return not self.remedy and not self.needs

    def __str__(self) -> str:
        return f"{self.name}: {self.found}" + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be looked at.

    Attributes:
        name: Of its `Check`.
        look: Does it.
        needs: Names of steps before it without which it makes no sense.
    """

    name: str
    look: Callable[[], Check]
    needs: tuple[str, ...] = ()


def checks(wish: Wish = ANY, sys: Path = SYS, dev: Path = DEV) -> Iterator[Check]:
    """All steps in order. What needs one that failed is named, and not looked at.

    Args:
        wish: What has to be used.
        sys: Where the kernel describes devices.
        dev: Where programs get at them.
    """
    found = ports(sys, dev)
    yield from done(
        *device_steps(found, wish),
        Step(EXTRA, _extra),
        Step(PROVIDER, lambda: _provider(likely_device(found, wish)), (PERMISSION, EXTRA)),
        Step(LOCKABLE, lambda: lockable(wish)),
        Step(LOOP, lambda: _loop(_port_address(found, wish)), (ADDRESS, PROVIDER, LOCKABLE)),
    )


def device_steps(found: Sequence[Port], wish: Wish) -> list[Step]:
    """What the kernel has to have, whatever library uses it."""
    return [
        Step(DEVICE, partial(_devices, found, wish)),
        Step(PERMISSION, partial(_control, found, wish), (DEVICE,)),
        Step(LINK, partial(_link, found, wish), (PERMISSION,)),
        Step(ADDRESS, partial(_address, found, wish), (LINK,)),
    ]


def done(*steps: Step) -> Iterator[Check]:
    """Do all steps in order, each as it is asked for, but for those that need one that failed."""
    bad: set[str] = set()
    for step in steps:
        needs = next((name for name in step.needs if name in bad), "")
        check = Check(step.name, NOT_LOOKED_AT, needs=needs) if needs else step.look()
        if not check.is_good:
            bad.add(step.name)
        yield check


def first_bad(found: Iterator[Check]) -> str:
    """The step that failed first; "" if none did. Those after it are not done."""
    return next((str(check) for check in found if not check.is_good), "")


def missing(wish: Wish = ANY, sys: Path = SYS, dev: Path = DEV) -> str:
    """The first step that fails; "" if RDMA can be used. Arguments as for `checks`."""
    return first_bad(checks(wish, sys, dev))


def find_port_address(wish: Wish = ANY, sys: Path = SYS, dev: Path = DEV) -> PortAddress:
    """The port and the address that fit `wish` best.

    Raises:
        TransportMissingError: There is none.
    """
    found = ports(sys, dev)
    if lacking := first_bad(done(*device_steps(found, wish))):
        raise TransportMissingError(f"RDMA cannot be used here: {lacking}")
    return _port_address(found, wish)


def _wanted(found: Sequence[Port], wish: Wish) -> list[Port]:
    return [
        port
        for port in found
        if wish.device in (None, port.device) and wish.port in (None, port.number)
    ]


def _devices(found: Sequence[Port], wish: Wish) -> Check:
    names = ", ".join(dict.fromkeys(str(port) for port in found))
    if not found:
        return Check(DEVICE, "the kernel knows none", (
            "this host has no RDMA card, or its driver is not loaded; in a container or a virtual "
            "machine the host has to pass it on"
        ))  # fmt: skip
    if not _wanted(found, wish):
        asked = wish.device or "any device"
        asked += f" port {wish.port}" if wish.port is not None else ""
        return Check(DEVICE, f"{asked} is not there", f"name one of: {names}")
    return Check(DEVICE, names)


def _control(found: Sequence[Port], wish: Wish) -> Check:
    wanted = _wanted(found, wish)
    usable = _permitted(wanted)
    if usable:
        return Check(PERMISSION, f"{usable[0].control} can be used")
    files = [port.control for port in wanted if port.control is not None]
    if not files:
        return Check(PERMISSION, "no uverbs device", "load the kernel module ib_uverbs")
    if not any(path.exists() for path in files):
        return Check(PERMISSION, f"{files[0]} is not there", (
            "load the kernel module ib_uverbs; for a container: --device=/dev/infiniband"
        ))  # fmt: skip
    return Check(
        PERMISSION,
        f"{files[0]} may not be read and written",
        "let this user do so (udev, group)",
    )


def _link(found: Sequence[Port], wish: Wish) -> Check:
    usable = _permitted(_wanted(found, wish))
    active = [port for port in usable if port.is_active]
    if not active:
        states = ", ".join(f"{port} is {port.state}" for port in usable)
        return Check(LINK, states, (
            "plug the cable in, set the network interface up (ip link set ... up), or start the "
            "subnet manager of InfiniBand"
        ))  # fmt: skip
    return Check(LINK, ", ".join(f"{port} is active, {port.link_layer}" for port in active))


def _address(found: Sequence[Port], wish: Wish) -> Check:
    active = [port for port in _permitted(_wanted(found, wish)) if port.is_active]
    if _port_addresses(active, wish):
        port, gid = _port_address(found, wish).port, _port_address(found, wish).gid
        return Check(ADDRESS, f"{port}, index {gid.index}: {gid.address} ({gid.kind})")
    known = "; ".join(
        f"{port}: " + (", ".join(f"{g.index} {g.address} {g.kind}" for g in port.gids) or "none")
        for port in active
    )
    if wish.gid_index is not None:
        return Check(ADDRESS, f"no index {wish.gid_index} that fits ({known})", "name another")
    return Check(ADDRESS, f"none for RoCE v2 ({known})", (
        "give the network interface of the device an IP address (ip addr add ...)"
    ))  # fmt: skip


def _extra() -> Check:
    if not library.is_installed():
        return Check(EXTRA, f"the Python package {library.NAME} is not there", library.INSTALL)
    return Check(EXTRA, f"{library.NAME} is installed")


def likely_device(found: Sequence[Port], wish: Wish) -> str:
    """Name of the device that is used once it works; `PERMISSION` has to be good."""
    usable = _permitted(_wanted(found, wish))
    places = _port_addresses([port for port in usable if port.is_active], wish)
    return places[0].port.device if places else usable[0].device


def _provider(device: str) -> Check:
    try:
        names = library.device_names()
    except TransportMissingError as error:
        return Check(PROVIDER, str(error), library.SYSTEM_LIBRARY)
    if device not in names:
        listed = ", ".join(names) or "none"
        return Check(PROVIDER, f"the system's library knows {listed}, not {device}", (
            library.SYSTEM_LIBRARY
        ))  # fmt: skip
    return Check(PROVIDER, f"libibverbs knows {device}")


def lockable(wish: Wish) -> Check:
    """Whether this process may pin `wish.lock_bytes`."""
    limit, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY or may_lock_all():
        return Check(LOCKABLE, "no limit")
    if limit >= wish.lock_bytes:
        return Check(LOCKABLE, f"{limit} bytes")
    above = "any" if most == resource.RLIM_INFINITY else str(most)
    return Check(LOCKABLE, f"{limit} bytes, of {wish.lock_bytes} that are needed", (
        f"ulimit -l unlimited (this user may raise it to {above}), LimitMEMLOCK=infinity in a "
        "systemd unit, --ulimit memlock=-1 for a container"
    ))  # fmt: skip


def _loop(used: PortAddress) -> Check:
    try:
        write_to_itself(used)
    except (TuneSyncError, OSError) as error:
        return Check(LOOP, str(error), "see the kernel's log (dmesg) for the device")
    return Check(LOOP, f"{LOOP_BYTES} bytes arrived")


def write_to_itself(used: PortAddress) -> None:
    """Write memory to other memory of this process, through the device.

    Raises:
        StoreError: It does not work.
        TransportMissingError: The device cannot be opened.
    """
    device = Device(used)
    source, target = bytearray(os.urandom(LOOP_BYTES)), bytearray(LOOP_BYTES)
    here = device.register(source, remote=False)
    there = device.register(target, remote=True)
    sender, receiver = QueuePair(device), QueuePair(device, is_target=True)
    try:
        sender.connect(receiver.endpoint)
        receiver.connect(sender.endpoint)
        window = there.window(0, LOOP_BYTES)
        sender.wait(sender.start(Move(here, 0, window, 0, LOOP_BYTES, True)), LOOP_TIMEOUT_S)
        if source != target:
            raise TransportMissingError("what arrived is not what was written")
    finally:
        for part in (sender, receiver, here, there, device):
            part.close()


def may_lock_all() -> bool:
    """Whether limits of locked memory are none for this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1)
    return False


def _permitted(found: Sequence[Port]) -> list[Port]:
    return [
        port
        for port in found
        if port.control is not None and os.access(port.control, os.R_OK | os.W_OK)
    ]


def _port_addresses(active: Sequence[Port], wish: Wish) -> list[PortAddress]:
    def fits(gid: Gid) -> bool:
        return wish.gid_index in (None, gid.index)

    found = [PortAddress(p, gid) for p in active for gid in p.usable_gids if fits(gid)]
    return sorted(found, key=lambda one: one.port.link_layer != INFINIBAND and one.gid.rank)


def _port_address(found: Sequence[Port], wish: Wish) -> PortAddress:
    active = [port for port in _permitted(_wanted(found, wish)) if port.is_active]
    return _port_addresses(active, wish)[0]


def checked_wish(wish: Wish) -> Wish:
    """The same. Raises ConfigError for a number that cannot be."""
    if (wish.port is not None and wish.port < 1) or (wish.gid_index or 0) < 0:
        raise ConfigError(
            f"{wish} cannot be; ports are counted from 1, indices of addresses from 0"
        )
    return wish
