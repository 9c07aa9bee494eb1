"""Writes into a peer's memory: `shelf_writer.py ADDRESS KEY SIZE_BYTES STALL_S TIMES`.

Prints "writing" when it is under way, then one line: the error's name, seconds, and the digest.
"""

from __future__ import annotations

import json
import random
import sys
import time

import xxhash

from tune_sync.errors import TuneSyncError
from tune_sync.fastpath.transports import Limits, Part, TcpTransport
from tune_sync.testing.transport_contract import TOKEN


def main(address: str, key: str, size_bytes: int, stall_s: float, times: int) -> None:
    transport = TcpTransport(TOKEN, limits=Limits(stall_timeout_s=stall_s))
    data = bytearray(random.Random(1).randbytes(size_bytes))
    error_name, started_s = "", time.monotonic()
    with transport.connect(address) as peer, transport.register(data) as region:
        try:
            with peer.reserve(key, size_bytes) as upload:
                upload.write(region, [Part(0, 0, size_bytes)]).wait(60)
                transfer = upload.write(region, [Part(0, 0, size_bytes)] * times)
                print("writing", flush=True)
                transfer.wait(120)
                upload.publish()
        except TuneSyncError as error:
            error_name = type(error).__name__
            print(error, file=sys.stderr)
    seconds = time.monotonic() - started_s
    print(json.dumps([error_name, seconds, xxhash.xxh3_128_hexdigest(data)]), flush=True)


if __name__ == "__main__":
    place, name, size, stall, count = sys.argv[1:]
    main(place, name, int(size), float(stall), int(count))
