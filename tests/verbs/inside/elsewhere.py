"""What a process finds that lacks something, said by the doctor and by who needs RDMA."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import sys
from multiprocessing.connection import Connection

from tune_sync.commands import doctor
from tune_sync.errors import StoreFullError, TransportMissingError
from tune_sync.fastpath.transports import RdmaTransport, TcpTransport, Transport, choose
from tune_sync.fastpath.verbs import library
from tune_sync.fastpath.verbs.checks import Wish

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


def _chosen() -> dict[str, str]:
    transports: list[Transport] = [RdmaTransport(TOKEN), TcpTransport(TOKEN)]
    chosen, required = choose("auto", transports), ""
    try:
        choose("rdma", transports, required=True)
    except TransportMissingError as error:
        required = str(error)
    return {"chosen": chosen.name, "reason": chosen.fallback_reason, "required": required}
