"""Which RDMA devices the kernel has, and what it says of them. Reads files; needs no library."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SYS = Path("/sys/class")
DEV = Path("/dev/infiniband")
INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"
ROCE_V2 = "RoCE v2"
ACTIVE = 4
# Tables have up to a thousand entries, most of them so: compared as text.
_UNSET = {"", *(ipaddress.IPv6Address(unset).exploded for unset in ("::", "fe80::"))}


@dataclass(frozen=True, slots=True)
class Gid:
    """An address of a port.

    Attributes:
        index: In the port's table: what a queue pair is given.
        address: As the port's table says it.
        kind: "RoCE v2", "IB/RoCE v1".
    """

    index: int
    address: ipaddress.IPv6Address
    kind: str

    @property
    def rank(self) -> int:
        """The lowest is the best: routed between subnets, and set by whoever runs the network."""
        if self.address.ipv4_mapped is not None:
            return 0
        return 2 if self.address.is_link_local else 1


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a device.

    Attributes:
        device: Name of the device, as `ibv_devices` lists it.
        number: From 1.
        state: What the kernel says, as "4: ACTIVE".
        link_layer: "InfiniBand" or "Ethernet".
        gids: Its addresses, those that are zero left out.
        control: The file through which a process uses the device; None: the kernel offers none.
    """

    device: str
    number: int
    state: str
    link_layer: str
    gids: tuple[Gid, ...]
    control: Path | None

    @property
    def is_active(self) -> bool:
        """Whether its link works."""
        return self.state.startswith(f"{ACTIVE}:")

    @property
    def usable_gids(self) -> list[Gid]:
        """What a queue pair may be given, the best first."""
        if self.link_layer == INFINIBAND:
            return [gid for gid in self.gids if gid.index == 0]
        return sorted((g for g in self.gids if g.kind == ROCE_V2), key=lambda g: g.rank)

    def __str__(self) -> str:
        return f"{self.device} port {self.number}"


def ports(sys: Path = SYS, dev: Path = DEV) -> list[Port]:
    """All ports of all devices, in the kernel's order of names."""
    controls = {
        _text(entry / "ibdev"): dev / entry.name
        for entry in _entries(sys / "infiniband_verbs")
        if (entry / "ibdev").exists()
    }
    return [
        Port(
            device.name,
            int(port.name),
            _text(port / "state"),
            _text(port / "link_layer"),
            tuple(_gids(port)),
            controls.get(device.name),
        )
        for device in _entries(sys / "infiniband")
        for port in _entries(device / "ports")
    ]


def counters(device: str, sys: Path = SYS) -> dict[str, int]:
    """What the device itself counts, over all its ports: "hw_counters/sent_pkts" and others.

    On hardware "counters/port_xmit_data" counts words of 4 bytes.
    """
    found: dict[str, int] = {}
    for port in _entries(sys / "infiniband" / device / "ports"):
        for folder in ("counters", "hw_counters"):
            for entry in _entries(port / folder):
                name, text = f"{folder}/{entry.name}", _text(entry)
                if text.isdigit():
                    found[name] = found.get(name, 0) + int(text)
    return found


def _gids(port: Path) -> Iterator[Gid]:
    table = port / "gids"
    for index in sorted(int(name) for name in _names(table)):
        text = _text(table / str(index))
        if text not in _UNSET:
            kind = _text(port / "gid_attrs/types" / str(index))
            yield Gid(index, ipaddress.IPv6Address(text), kind)


def _entries(folder: Path) -> list[Path]:
    return [folder / name for name in sorted(_names(folder))]


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        with path.open("rb", buffering=0) as file:
            return file.read().decode().strip()
    except OSError:  # the kernel answers so for entries of a table that are not set
        return ""
