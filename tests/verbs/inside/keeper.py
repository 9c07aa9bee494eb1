"""Processes that keep memory for peers which come by RDMA or Mooncake, and that write to it.

Between machines: `python -m tests.verbs.inside.keeper keep HOST` prints its address, and
`... across ADDRESS SIZE_BYTES` writes there, reads, compares and prints what it found.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.verbs.inside.others import Answers, serve
from tests.verbs.inside.sides import content
from tests.verbs.inside.sides import digest as digest_of
from tune_sync.errors import TuneSyncError
from tune_sync.fastpath import Slots
from tune_sync.fastpath.transports import MooncakeTransport, Part, RdmaTransport, Shelf, Transport
from tune_sync.fastpath.verbs.ports import counters

TOKEN = b"the token of one run"
SHARED_MEMORY = Path("/dev/shm")
LIMIT_BYTES = 600 << 20
LARGE_BYTES = 96 << 20


def made(by: str) -> Transport:
    return MooncakeTransport(TOKEN) if by == "mooncake" else RdmaTransport(TOKEN)


def _served(host: str, stack: ExitStack, by: str = "rdma") -> tuple[str, Shelf]:
    shelf = Shelf(Slots(SHARED_MEMORY, memory_limit_bytes=LIMIT_BYTES))
    return stack.enter_context(made(by).serve(shelf, host)).address, shelf


def keep(connection: Connection, host: str, by: str = "rdma") -> None:
    """Another process: serves a shelf, and says what is on it."""
    with ExitStack() as stack:
        address, shelf = _served(host, stack, by)

        def digest(request: dict[str, Any]) -> str | None:
            found = shelf.find(request["key"])
            if found is None:
                return None
            with shelf.reading(found.handle, 0, found.size_bytes) as view:
                return digest_of(view)

        answers: Answers = {
            "digest": digest,
            "held_count": lambda request: shelf.held_count,
            "written_bytes": lambda request: shelf.written_bytes,
        }
        serve(connection, address, answers)


def write(connection: Connection, address: str, by: str = "rdma") -> None:
    """Another process: writes without end, until killed."""
    transport = made(by)
    peer, region = transport.connect(address), transport.register(bytearray(LARGE_BYTES))
    upload = peer.reserve("never published", LARGE_BYTES)
    connection.send("begun")
    while True:
        upload.write(region, [Part(0, 0, LARGE_BYTES)]).wait(60.0)


def keep_across(host: str) -> None:
    """Serve a shelf until killed."""
    with ExitStack() as stack:
        tell(_served(host, stack)[0])
        threading.Event().wait()


def across(address: str, size_bytes: int) -> None:
    """Write memory of another host, and read it back; say so when it begins, and how it ended."""
    data = content(size_bytes)
    before, started_s, error = counters("rxe0"), time.monotonic(), ""
    back = bytearray(size_bytes)
    try:
        _there_and_back(address, data, back)
    except TuneSyncError as caught:
        error = type(caught).__name__
    seconds, after = time.monotonic() - started_s, counters("rxe0")
    tell({
        "is_equal": back == data, "error": error, "seconds": seconds,
        "sent_count": after["hw_counters/sent_pkts"] - before["hw_counters/sent_pkts"],
        "received_count": after["hw_counters/rcvd_pkts"] - before["hw_counters/rcvd_pkts"],
    })  # fmt: skip


def _there_and_back(address: str, data: bytearray, back: bytearray) -> None:
    transport, whole = RdmaTransport(TOKEN), [Part(0, 0, len(data))]
    with transport.connect(address) as peer:
        with transport.register(data) as region, peer.reserve("k", len(data)) as upload:
            transfer = upload.write(region, whole)
            tell("begun")
            transfer.wait(120.0)
            upload.publish()
        with transport.register(back) as region:
            peer.read(upload.held, region, whole).wait(120.0)
        peer.remove("k")


def tell(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["keep", host]:
            keep_across(host)
        case ["across", address, size]:
            across(address, int(size))
