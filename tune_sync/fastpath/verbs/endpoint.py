"""What two hosts tell each other before memory is moved: plain data, checked when it arrives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tune_sync.errors import DamagedError

_GID_CHARS = 32
_MOST = {
    "queue_pair": (1 << 24) - 1,
    "first_packet": (1 << 24) - 1,
    "local_id": (1 << 16) - 1,
    "port": 255,
    "read_count": 255,
    "address": (1 << 64) - 1,
    "key": (1 << 32) - 1,
    "length_bytes": (1 << 63) - 1,
}
_MTUS = (1, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One side of a connection.

    Attributes:
        queue_pair: Its number on that host.
        first_packet: The number of the first packet that it sends.
        local_id: Of the port, on InfiniBand; 0 on Ethernet.
        gid: Of the port, in hexadecimal.
        port: Its number on that host.
        mtu: The largest packet, as verbs count it: 1 is 256 bytes, 5 is 4096.
        read_count: Reads that it serves at a time.
    """

    queue_pair: int
    first_packet: int
    local_id: int
    gid: str
    port: int
    mtu: int
    read_count: int

    def fields(self) -> dict[str, Any]:
        """As it is sent."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def parsed(cls, found: Mapping[str, Any]) -> Endpoint:
        """What arrived.

        Raises:
            DamagedError: It is none.
        """
        numbers = {name: _number(found, name) for name in cls.__slots__ if name in _MOST}
        gid, mtu = found.get("gid"), found.get("mtu")
        is_gid = isinstance(gid, str) and len(gid) == _GID_CHARS
        if not is_gid or set(str(gid)) - set("0123456789abcdef") or mtu not in _MTUS:
            raise _no_endpoint()
        return cls(gid=str(gid), mtu=int(str(mtu)), **numbers)


@dataclass(frozen=True, slots=True)
class Window:
    """Memory of another host that may be written or read from here.

    Attributes:
        address: Where it begins, in that process.
        key: What its device asks for.
        length_bytes: Of it.
    """

    address: int
    key: int
    length_bytes: int

    def fields(self) -> dict[str, int]:
        """As it is sent."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def parsed(cls, found: Mapping[str, Any]) -> Window:
        """What arrived.

        Raises:
            DamagedError: It is none.
        """
        return cls(**{name: _number(found, name) for name in cls.__slots__})


def _number(found: Mapping[str, Any], name: str) -> int:
    number = found.get(name)
    if type(number) is not int or not (name == "port") <= number <= _MOST[name]:
        raise _no_endpoint()
    return number


def _no_endpoint() -> DamagedError:
    return DamagedError("what arrived describes no RDMA connection; use one version everywhere")
