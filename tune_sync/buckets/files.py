"""Files of this machine to and from a bucket, with bounded memory whatever their number, size."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from tune_sync.buckets.ahead import RANGE_BYTES, RANGES_COUNT
from tune_sync.buckets.bucket import Bucket, ObjectInfo
from tune_sync.buckets.transfers import Transfers
from tune_sync.layout import check_key

# A file up to this size is one request; of a larger one, parts go side by side.
WHOLE_BYTES = 16 << 20
CHUNK_BYTES = 8 << 20
ALL = "all"


def put_files(
    bucket: Bucket, sources: Mapping[str, Path], check: Callable[[], None] = lambda: None
) -> None:
    """Put files, the large ones one after the other.

    Args:
        bucket: Where.
        sources: Key -> file.
        check: Called before each file, and each chunk of a large one; what it raises ends this.
    """
    transfers = Transfers()
    large = []
    try:
        for key, source in sources.items():
            check()
            size_bytes = source.stat().st_size
            if size_bytes > WHOLE_BYTES:
                large.append((key, source, size_bytes))
            else:
                transfers.start(ALL, size_bytes, partial(_put_whole, bucket, key, source))
        for key, source, size_bytes in large:
            bucket.put_stream(key, _chunks(source, check), size_bytes)
        transfers.wait(ALL)
    except BaseException:
        transfers.drop(ALL)
        raise


def get_files(bucket: Bucket, objects: Iterable[ObjectInfo], directory: Path) -> None:
    """Fetch objects into files below `directory`.

    Raises:
        PathRefusedError: A name leads out of it, or is none of a file. Nothing is written then.
    """
    targets = [(found, directory / check_key(found.key)) for found in objects]
    small, ranges = Transfers(), Transfers(RANGES_COUNT, RANGES_COUNT * RANGE_BYTES)
    try:
        for found, target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            if found.size_bytes <= RANGE_BYTES:
                small.start(ALL, found.size_bytes, partial(_get_whole, bucket, found.key, target))
                continue
            target.write_bytes(b"")
            for start in range(0, found.size_bytes, RANGE_BYTES):
                get = partial(_get_range, bucket, found.key, start, target)
                ranges.start(ALL, RANGE_BYTES, get)
        small.wait(ALL)
        ranges.wait(ALL)
    except BaseException:  # nothing is written any more when this raises
        small.drop(ALL)
        ranges.drop(ALL)
        raise


def _put_whole(bucket: Bucket, key: str, source: Path) -> None:
    bucket.put(key, source.read_bytes())


def _chunks(source: Path, check: Callable[[], None]) -> Iterator[bytes]:
    with open(source, "rb") as file:
        while data := file.read(CHUNK_BYTES):
            check()
            yield data


def _get_whole(bucket: Bucket, key: str, target: Path) -> None:
    target.write_bytes(bucket.get(key))


def _get_range(bucket: Bucket, key: str, start: int, target: Path) -> None:
    data = bucket.get(key, start, RANGE_BYTES)
    descriptor = os.open(target, os.O_WRONLY)
    try:
        written_bytes = 0
        while written_bytes < len(data):
            written_bytes += os.pwrite(descriptor, data[written_bytes:], start + written_bytes)
    finally:
        os.close(descriptor)
