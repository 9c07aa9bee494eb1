"""Slots of shared memory on this host to and from slots of another. Needs no Ray."""

from tune_sync.fastpath.tls import Tls
from tune_sync.fastpath.transport_names import AUTO, OBJECT_STORE
from tune_sync.fastpath.transports.choosing import Choice, choose
from tune_sync.fastpath.transports.mooncake import MooncakeTransport
from tune_sync.fastpath.transports.proving import prove
from tune_sync.fastpath.transports.rdma import RdmaTransport
from tune_sync.fastpath.transports.shelf import Held, Shelf
from tune_sync.fastpath.transports.tcp import TcpTransport
from tune_sync.fastpath.transports.transfer import Transfer
from tune_sync.fastpath.transports.transport import (
    Limits,
    Part,
    Peer,
    Region,
    Server,
    Transport,
    Upload,
)

__all__ = [
    "AUTO",
    "OBJECT_STORE",
    "Choice",
    "Held",
    "Limits",
    "MooncakeTransport",
    "Part",
    "Peer",
    "RdmaTransport",
    "Region",
    "Server",
    "Shelf",
    "TcpTransport",
    "Tls",
    "Transfer",
    "Transport",
    "Upload",
    "choose",
    "prove",
]
