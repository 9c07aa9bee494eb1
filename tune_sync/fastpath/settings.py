"""`FastPath`: what users set. Checked when built."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tune_sync.errors import ConfigError
from tune_sync.fastpath import environment
from tune_sync.fastpath.folder import SHARED_MEMORY
from tune_sync.fastpath.sizing import SLOTS
from tune_sync.fastpath.tls import Tls
from tune_sync.fastpath.transport_names import AUTO, NAMES, OBJECT_STORE, TCP
from tune_sync.field_checks import check_above_zero, names_its_fields

_TRANSPORTS = (AUTO, *NAMES)
_PORTS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)
_LAST_PORT = 65535
_FOR_REPLICAS = (
    "transport", "required", "tls", "ports", "rdma_device", "rdma_port", "rdma_gid_index",
)  # fmt: skip


def _memory_limit() -> int | None:
    return environment.number(environment.MEMORY_LIMIT, None)


def _max_checkpoints() -> int:
    return environment.number(environment.MAX_CHECKPOINTS, SLOTS) or SLOTS


@names_its_fields
@dataclass
class FastPath:
    """Checkpoints are staged in shared memory of their node. For `SyncConfig(fast_path=...)`.

    What is not given is taken from the environment, where this is built.

    Args:
        memory_limit: Bytes of shared memory that checkpoints may take on each node, those of all
            runs of this user together. What finds no room there is staged on the node's disk.
            Or `TUNE_SYNC_MEMORY_LIMIT`. None: half of what is free there.
        max_checkpoints_in_memory: How many of each trial are there at a time: one is written while
            the one before is sent. Or `TUNE_SYNC_MAX_CHECKPOINTS_IN_MEMORY`.
        transport: With `wait_for="replicated"`: how checkpoints get to the other node: "rdma",
            "tcp" or "object_store" (Ray's, which opens no port of its own). Or
            `TUNE_SYNC_TRANSPORT`. None: "auto", the first of these that works between the two.
            "mooncake" is taken only if it is named here: over several cards at once.
        required: With `wait_for="replicated"`: what `transport` names is used or nothing, and with
            "auto", anything but the object store. Else a warning names what is used instead, and
            why. Or `TUNE_SYNC_TRANSPORT_REQUIRED=1`. None: no.
        tls: With `wait_for="replicated"`: encrypts what goes by TCP. Paths of files that are on
            every node. With it, "auto" does not take RDMA, which goes past TLS.
        ports: With `wait_for="replicated"`: where a node listens for peers, as "7700" or
            "7700-7799": each run that goes on takes one port of a node; "mooncake" has ports of its
            own besides. Or `TUNE_SYNC_PORTS`. None: any.
        rdma_device: With `wait_for="replicated"`: name of the RDMA device on every node. None:
            what `TUNE_SYNC_RDMA_DEVICE` says on each node, as nodes differ, or what fits best.
        rdma_port: Its port, from 1. As `rdma_device`: `TUNE_SYNC_RDMA_PORT`.
        rdma_gid_index: Of the port's address, from 0. As `rdma_device`: `TUNE_SYNC_RDMA_GID_INDEX`.

    Raises:
        ConfigError: A value that cannot work, naming the field or the variable.
    """

    memory_limit: int | None = field(default_factory=_memory_limit)
    max_checkpoints_in_memory: int = field(default_factory=_max_checkpoints)
    transport: str | None = None
    required: bool | None = None
    tls: Tls | None = None
    ports: str | None = None
    rdma_device: str | None = None
    rdma_port: int | None = None
    rdma_gid_index: int | None = None
    _root: Path = field(default=SHARED_MEMORY, init=False, repr=False)
    _wanted: str = field(default=AUTO, init=False, repr=False)
    _is_required: bool = field(default=False, init=False, repr=False)
    _port_range: tuple[int, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        if self.memory_limit is not None:
            _check("memory_limit", self.memory_limit, "a whole number of bytes")
        _check("max_checkpoints_in_memory", self.max_checkpoints_in_memory, "a whole number")
        _check_transport(self.transport, self.required)
        _check_rdma(self.rdma_device, self.rdma_port, self.rdma_gid_index)
        _check_used(self)
        # The fields stay as they are given: those that are refuse a run without replicas.
        wanted, required = self.transport, self.required
        if wanted is None:
            wanted = environment.choice(environment.TRANSPORT, _TRANSPORTS) or AUTO
        if required is None:
            required = environment.flag(environment.TRANSPORT_REQUIRED)
        self._wanted, self._is_required = wanted, required
        self._port_range = _port_range(self.ports)
        if self.tls is not None:
            _check_tls(self.tls, wanted)

    @property
    def memory_dir(self) -> str:
        """Where shared memory is."""
        return str(self._root)

    @property
    def wanted_transport(self) -> str:
        """`transport`, or what the environment says, or "auto"."""
        return self._wanted

    @property
    def is_transport_required(self) -> bool:
        """`required`, or what the environment says."""
        return self._is_required

    @property
    def port_range(self) -> tuple[int, ...]:
        """The first and the last of `ports`, or of what the environment says; () for any."""
        return self._port_range

    @property
    def given_for_replicas(self) -> list[str]:
        """Fields that say something of replicas, and that were given here."""
        return [name for name in _FOR_REPLICAS if getattr(self, name) is not None]


def _check(name: str, value: Any, what: str) -> None:
    check_above_zero(f"FastPath({name}={value!r})", value, what)


def _is_number(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _check_rdma(device: Any, port: Any, gid_index: Any) -> None:
    if device is not None and not (isinstance(device, str) and device):
        raise ConfigError(f"FastPath(rdma_device={device!r}): a name is needed")
    if port is not None:
        _check("rdma_port", port, "a whole number")
    if gid_index is not None and not _is_number(gid_index, 0):
        raise ConfigError(
            f"FastPath(rdma_gid_index={gid_index!r}): a whole number, from 0, is needed"
        )


def _check_transport(transport: Any, required: Any) -> None:
    if transport is not None and transport not in _TRANSPORTS:
        known = ", ".join(f'"{name}"' for name in _TRANSPORTS)
        raise ConfigError(f"FastPath(transport={transport!r}): give one of {known}")
    if required is not None and not isinstance(required, bool):
        raise ConfigError(f"FastPath(required={required!r}): True or False is needed")


def _check_used(settings: FastPath) -> None:
    """Refuse what the transport that is named beside it does nothing with."""
    given = settings.given_for_replicas
    of_cards = [name for name in given if name.startswith("rdma_")]
    unused = {TCP: of_cards, OBJECT_STORE: [n for n in given if n == "ports"] + of_cards}
    if names := unused.get(settings.transport or "", []):
        raise ConfigError(
            f'FastPath(transport="{settings.transport}"): it does nothing with {", ".join(names)}; '
            "leave that out, or choose another transport"
        )


def _port_range(given: Any) -> tuple[int, ...]:
    said = f"FastPath(ports={given!r})"
    if given is None:
        given = environment.text(environment.PORTS)
        said = f"{environment.PORTS}={given!r}"
    if given is None:
        return ()
    found = _PORTS.fullmatch(given) if isinstance(given, str) else None
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 0 < first <= last <= _LAST_PORT:
        raise ConfigError(f'{said}: a port or a range of ports is needed, as "7700-7799"')
    return first, last


def _check_tls(tls: Any, transport: str) -> None:
    if not isinstance(tls, Tls):
        raise ConfigError(f"FastPath(tls={tls!r}): a tune_sync.fastpath.Tls is needed")
    for name in ("certificate", "key", "authority"):
        path = str(getattr(tls, name))
        if not os.path.isabs(path):
            raise ConfigError(
                f"FastPath(tls=...): {name}={path!r} has to be an absolute path, the same on every "
                "node"
            )
    if transport == OBJECT_STORE:
        raise ConfigError(
            'FastPath(transport="object_store", tls=...): what goes through Ray is encrypted by '
            'Ray (RAY_USE_TLS); leave tls out, or give transport="tcp"'
        )
