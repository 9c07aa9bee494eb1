"""Holds memory for peers: `shelf_host.py HOST STALL_S`. Prints its address, then answers lines.

`find KEY` prints the digest of what is visible there, or null; `used` the bytes that are taken.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import xxhash

from tune_sync.fastpath.transports import Limits, Shelf, TcpTransport
from tune_sync.testing.transport_contract import TOKEN
from tune_sync.testing.transport_pair import CountingPool


def main(host: str, stall_s: float) -> None:
    pool = CountingPool(Path(tempfile.mkdtemp(dir="/dev/shm")), 512 << 20)
    shelf = Shelf(pool)
    transport = TcpTransport(TOKEN, limits=Limits(stall_timeout_s=stall_s))
    with transport.serve(shelf, host) as server:
        print(json.dumps(server.address), flush=True)
        for line in sys.stdin:
            match line.split():
                case ["find", key]:
                    print(json.dumps(digest(shelf, key)), flush=True)
                case ["used"]:
                    print(json.dumps(pool.used_bytes), flush=True)


def digest(shelf: Shelf, key: str) -> str | None:
    found = shelf.find(key)
    if found is None:
        return None
    with shelf.reading(found.handle, 0, found.size_bytes) as view:
        return xxhash.xxh3_128_hexdigest(view)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
