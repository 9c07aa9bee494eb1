"""A process that moves files without Ray: python -m benchmarks.bucket_tools ENDPOINT [S5CMD]

Answers orders {"who": "sync"|"obstore"|"s5cmd", "way": "up"|"down", "directory": …, "prefix": …}.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store

from benchmarks.bucket_place import BUCKET, our_options, set_environment
from benchmarks.orders import serve
from benchmarks.peak import forget_peak, now_bytes, peak_bytes
from tune_sync.syncers.cloud import CloudSyncer

AT_ONCE_COUNT = 32
LARGE_BYTES = 16 << 20
PART_BYTES = 16 << 20
PARTS_COUNT = 12


class Tools:
    """The contenders of this process.

    Args:
        endpoint: URL of the sink.
        s5cmd: Path of the program, or "".
    """

    def __init__(self, endpoint: str, s5cmd: str) -> None:
        self._endpoint = endpoint
        self._program = s5cmd
        self._store = S3Store(
            BUCKET, endpoint=endpoint, unsigned_payload=True, client_options={"allow_http": True}
        )
        self._idle_bytes = now_bytes()

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """Move a directory; returns seconds, and the memory beyond that of the idle process."""
        act: Callable[[str, Path, str], int] = getattr(self, f"_{order['who']}")
        forget_peak()
        start_s = time.monotonic()
        child_bytes = act(order["way"], Path(order["directory"]), order["prefix"])
        seconds = time.monotonic() - start_s
        extra_bytes = child_bytes or peak_bytes() - self._idle_bytes
        return {"seconds": seconds, "extra_bytes": extra_bytes}

    def _sync(self, way: str, directory: Path, prefix: str) -> int:
        syncer = CloudSyncer(our_options(self._endpoint))
        remote = f"s3://{BUCKET}/{prefix}"
        if way == "up":
            syncer.sync_up(str(directory), remote)
        else:
            syncer.sync_down(remote, str(directory))
        syncer.wait()
        return 0

    def _s5cmd(self, way: str, directory: Path, prefix: str) -> int:
        remote = f"s3://{BUCKET}/{prefix}/"
        ends = [f"{directory}/", remote] if way == "up" else [f"{remote}*", f"{directory}/"]
        command = [self._program, "--endpoint-url", self._endpoint, "cp", *ends]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        if status:
            raise RuntimeError(f"{command} ended with {status}")
        return used.ru_maxrss << 10

    def _obstore(self, way: str, directory: Path, prefix: str) -> int:
        asyncio.run(self._up(directory, prefix) if way == "up" else self._down(directory, prefix))
        return 0

    async def _up(self, directory: Path, prefix: str) -> None:
        turns = asyncio.Semaphore(AT_ONCE_COUNT)

        async def put(path: Path) -> None:
            key = f"{prefix}/{path.relative_to(directory)}"
            if path.stat().st_size > LARGE_BYTES:
                await obstore.put_async(
                    self._store, key, _chunks(path), use_multipart=True,
                    chunk_size=PART_BYTES, max_concurrency=PARTS_COUNT,
                )  # fmt: skip
                return
            async with turns:
                await obstore.put_async(self._store, key, path.read_bytes(), use_multipart=False)

        await asyncio.gather(*(put(path) for path in directory.iterdir()))

    async def _down(self, directory: Path, prefix: str) -> None:
        turns = asyncio.Semaphore(AT_ONCE_COUNT)
        parts = asyncio.Semaphore(PARTS_COUNT)

        async def get(key: str, path: Path) -> None:
            async with turns:
                result = await obstore.get_async(self._store, key)
                path.write_bytes(await result.bytes_async())

        async def get_part(key: str, start: int, end: int, descriptor: int) -> None:
            async with parts:
                data = await obstore.get_range_async(self._store, key, start=start, end=end)
                os.pwrite(descriptor, data, start)

        jobs = []
        for batch in obstore.list(self._store, prefix=prefix):
            for found in batch:
                path = directory / found["path"].rpartition("/")[2]
                if found["size"] <= LARGE_BYTES:
                    jobs.append(get(found["path"], path))
                    continue
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
                for start in range(0, found["size"], PART_BYTES):
                    end = min(start + PART_BYTES, found["size"])
                    jobs.append(get_part(found["path"], start, end, descriptor))
        await asyncio.gather(*jobs)


def _chunks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while data := file.read(PART_BYTES):
            yield data


def main(endpoint: str, s5cmd: str = "") -> None:
    """Answer orders."""
    set_environment(endpoint)
    serve(Tools(endpoint, s5cmd).answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
