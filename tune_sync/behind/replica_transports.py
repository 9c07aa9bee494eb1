"""Which transports may carry replicas of a run, and what this node lacks for them."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from tune_sync.behind.replica_intake import SLOT_BYTES, SLOTS_COUNT
from tune_sync.errors import PeerLostError
from tune_sync.fastpath.tls import Tls
from tune_sync.fastpath.transport_names import AUTO, MOONCAKE, OBJECT_STORE, RDMA, TCP
from tune_sync.fastpath.transports import (
    MooncakeTransport,
    RdmaTransport,
    Server,
    Shelf,
    TcpTransport,
    Transport,
)
from tune_sync.fastpath.transports.rdma import wish_here
from tune_sync.fastpath.verbs.checks import Wish
from tune_sync.spec import Options

# What a node that takes replicas pins.
LOCK_BYTES = SLOTS_COUNT * SLOT_BYTES


def names_of(options: Options) -> tuple[str, ...]:
    """Transports that a run may take, the best first; without the object store."""
    if options.transport == OBJECT_STORE:
        return ()
    if options.transport == TCP or (options.transport == AUTO and options.tls):
        return (TCP,)  # RDMA goes past TLS: only who names it gets it
    by_card = MOONCAKE if options.transport == MOONCAKE else RDMA
    is_alone = options.transport_required and options.transport == by_card
    return (by_card,) if is_alone else (by_card, TCP)


def transports_of(options: Options, token: bytes) -> Sequence[Transport]:
    """The same, ready to use.

    Raises:
        ConfigError: A file for TLS cannot be used, or a variable of this node; names it.
    """
    tls = tls_of(options)
    by_card = {RDMA: RdmaTransport, MOONCAKE: MooncakeTransport}
    return [
        by_card[name](token, tls=tls, wish=wish_of(options))
        if name in by_card
        else TcpTransport(token, tls=tls)
        for name in names_of(options)
    ]


def wish_of(options: Options) -> Wish:
    """The device to use on this node. Raises ConfigError for a variable that cannot be."""
    return wish_here(options.rdma_device, options.rdma_port, options.rdma_gid_index, LOCK_BYTES)


def serve(transport: Transport, shelf: Shelf, host: str, options: Options) -> Server:
    """Let others in at a port of this node that the run may use.

    Args:
        transport: They come by it, or by what is below it.
        shelf: What they may write and read.
        host: Address of this node.
        options: Of the run.

    Raises:
        PeerLostError: All of these ports are taken now.
    """
    if not options.ports:
        return transport.serve(shelf, host)
    first, last = options.ports
    for port in range(first, last + 1):
        try:
            return transport.serve(shelf, host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise PeerLostError(
        f"all of the ports {first}-{last} are taken on {host}; give more of them, as each run that "
        "goes on takes one (ports of FastPath, or TUNE_SYNC_PORTS)"
    )


def tls_of(options: Options) -> Tls | None:
    """The files for TLS; None without."""
    return Tls(*map(Path, options.tls)) if options.tls else None
