"""What a process finds that lacks something, said by the doctor and by who needs RDMA."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import sys
from multiprocessing.connection import Connection
from typing import Any

from tests.verbs.inside.others import serve
from tune_sync.commands import doctor
from tune_sync.errors import StoreFullError, TransportMissingError, TuneSyncError
from tune_sync.fastpath.transports import RdmaTransport, TcpTransport, Transport, choose
from tune_sync.fastpath.verbs import library
from tune_sync.fastpath.verbs.checks import Wish, find_port_address
from tune_sync.fastpath.verbs.device import Device
from tune_sync.fastpath.verbs.queue_pair import QueuePair

TOKEN = b"the token of one run"
NOBODY = 65534
FEW_BYTES, MANY_BYTES = 65536, 8 << 20


def look(connection: Connection, lacks: str = "") -> None:
    """Another process: lacks something, and tells what it finds."""
    library.load()
    match lacks:
        case "user":
            os.setuid(NOBODY)
        case "extra":
            sys.modules["ibverbs"] = None  # type: ignore[assignment]
        case "lockable memory":
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (MANY_BYTES // 4, MANY_BYTES // 4))
            os.setuid(NOBODY)  # who is root may lock all
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        is_good = doctor.tell(Wish())
    connection.send({"is_good": is_good, "said": said.getvalue(), **_chosen()})


def register(connection: Connection) -> None:
    """Another process: may lock little memory, and registers little, and then much."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (MANY_BYTES // 4, MANY_BYTES // 4))
    os.setuid(NOBODY)
    transport = RdmaTransport(TOKEN)
    transport.register(bytearray(FEW_BYTES)).close()
    try:
        transport.register(bytearray(MANY_BYTES))
    except StoreFullError as error:
        connection.send(str(error))


def make(connection: Connection) -> None:
    """Another process: has a device open, makes one thing more, and tells why it could not."""
    device = Device(find_port_address())

    def told(request: dict[str, Any]) -> str:
        try:
            match request["what"]:
                case "connection":
                    QueuePair(device).close()
                case "memory":
                    device.register(bytearray(FEW_BYTES), remote=True).close()
                case "device":
                    Device(find_port_address()).close()
        except (TuneSyncError, OSError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    serve(connection, None, {"make": told})


def _chosen() -> dict[str, str]:
    transports: list[Transport] = [RdmaTransport(TOKEN), TcpTransport(TOKEN)]
    chosen, required = choose("auto", transports), ""
    try:
        choose("rdma", transports, required=True)
    except TransportMissingError as error:
        required = str(error)
    return {"chosen": chosen.name, "reason": chosen.fallback_reason, "required": required}
