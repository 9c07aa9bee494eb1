"""Files of this machine to and from a bucket, with bounded memory whatever their number, size."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from tune_sync.buckets.ahead import RANGE_BYTES, RANGES_COUNT
from tune_sync.buckets.bucket import Bucket, ObjectInfo
from tune_sync.buckets.transfers import Transfers
from tune_sync.layout import check_key

# A file up to this size is one request, which alone can have a condition: as much as a client would
# hold before it sends a first part. Of a larger one, parts go side by side.
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
        check: Called before each file, and each chunk of a large one, from several threads; what
            it raises ends this.
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
                transfers.start(ALL, size_bytes, partial(_put_whole, bucket, key, source, check))
        for key, source, size_bytes in large:
            bucket.put_stream(key, _chunks(source, check), size_bytes)
        transfers.wait(ALL)
    except BaseException:
        transfers.drop(ALL)
        raise


def get_files(
    bucket: Bucket, objects: Iterable[ObjectInfo], directory: Path,
    check: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Fetch objects into files below `directory`, each whole or not at all.

    Args:
        bucket: Where from.
        objects: Of it.
        directory: What else is in it stays.
        check: Called from several threads before each step; what it raises ends this.

    Raises:
        PathRefusedError: A name leads out of it, or is none of a file. Nothing is written then.
        OSError: A large object has changed meanwhile.
    """
    targets = [(found, directory / check_key(found.key)) for found in objects]
    small, ranges = Transfers(), Transfers(RANGES_COUNT, RANGES_COUNT * RANGE_BYTES)
    arriving: list[_Arriving] = []
    try:
        for found, target in targets:
            check()
            target.parent.mkdir(parents=True, exist_ok=True)
            if found.size_bytes <= RANGE_BYTES:
                get = partial(_get_whole, bucket, found.key, target, check)
                small.start(ALL, found.size_bytes, get)
                continue
            arriving.append(_Arriving(bucket, found, target, check))
            for start in range(0, found.size_bytes, RANGE_BYTES):
                ranges.start(ALL, RANGE_BYTES, partial(arriving[-1].get, start))
        small.wait(ALL)
        ranges.wait(ALL)
    except BaseException:  # nothing is written any more when this raises
        small.drop(ALL)
        ranges.drop(ALL)
        for file in arriving:
            file.fresh.unlink(missing_ok=True)
        raise


def _put_whole(bucket: Bucket, key: str, source: Path, check: Callable[[], None]) -> None:
    check()
    bucket.put(key, source.read_bytes())


def _chunks(source: Path, check: Callable[[], None]) -> Iterator[bytes]:
    with open(source, "rb") as file:
        while data := file.read(CHUNK_BYTES):
            check()
            yield data


def _fresh(target: Path) -> Path:
    """Where the bytes of `target` go until all are there."""
    return target.with_name(f".{uuid.uuid4().hex}")


def _get_whole(bucket: Bucket, key: str, target: Path, check: Callable[[], None]) -> None:
    check()
    data, fresh = bucket.get(key), _fresh(target)
    check()
    try:
        fresh.write_bytes(data)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


class _Arriving:
    """A large file, which gets its name with its last range. `get` is called once for each."""

    def __init__(
        self, bucket: Bucket, found: ObjectInfo, target: Path, check: Callable[[], None]
    ) -> None:
        self.fresh = _fresh(target)
        self._bucket, self._found, self._target, self._check = bucket, found, target, check
        self._left_bytes = found.size_bytes
        self._left_lock = threading.Lock()
        self.fresh.touch()

    def get(self, start: int) -> None:
        """Fetch the range that begins at `start`."""
        self._check()
        data = self._bucket.get(self._found.key, start, RANGE_BYTES)
        if len(data) != min(RANGE_BYTES, self._found.size_bytes - start):
            raise OSError(f"{self._found.key} has changed while it was fetched; fetch it again")
        self._check()
        _write(self.fresh, data, start)
        with self._left_lock:
            self._left_bytes -= len(data)
            is_last = not self._left_bytes
        if is_last:
            self.fresh.replace(self._target)


def _write(file: Path, data: bytes, start: int) -> None:
    descriptor = os.open(file, os.O_WRONLY)
    try:
        written_bytes = 0
        while written_bytes < len(data):
            written_bytes += os.pwrite(descriptor, data[written_bytes:], start + written_bytes)
    finally:
        os.close(descriptor)
