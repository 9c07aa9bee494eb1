"""Prints how much memory a process keeps, in MiB, after eight threads have sent files."""

from __future__ import annotations

import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tune_sync.homes.home import LocalHome
from tune_sync.transfer.chunks import DIRECT_BYTES
from tune_sync.transfer.upload import BATCH_BYTES, SMALL_BYTES, CheckpointUpload

THREAD_COUNT = 8


def own_mib() -> int:
    found = re.search(r"RssAnon:\s*(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) >> 10


def main() -> None:
    upload = CheckpointUpload(LocalHome(Path(sys.argv[1])), "trial/checkpoint_000000", 0)
    all_there, turn = threading.Barrier(THREAD_COUNT), threading.Lock()
    small, middle = b"x" * SMALL_BYTES, b"x" * (DIRECT_BYTES - 1)

    def add(thread: int) -> None:
        all_there.wait()
        with turn:
            for number in range(BATCH_BYTES // SMALL_BYTES + 2):
                upload.add_small(f"{thread}/{number}", small, "")
            with upload.open(f"{thread}/middle") as stream:
                stream.write(middle)

    before_mib = own_mib()
    with ThreadPoolExecutor(THREAD_COUNT) as threads:
        list(threads.map(add, range(THREAD_COUNT)))
        print(own_mib() - before_mib)


if __name__ == "__main__":
    main()
