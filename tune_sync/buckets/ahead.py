"""Objects that are read from start to end come in ranges side by side, and ahead of the reader."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Executor, Future, ThreadPoolExecutor

from tune_sync.buckets.bucket import Bucket

# One connection to a store brings some 100 MB/s, after some 20 ms. Larger ranges lose less to the
# latency, and need more memory: a thread keeps about twice a range.
RANGE_BYTES = 4 << 20
# So many ranges are under way, or wait to be asked for.
RANGES_COUNT = 16
# An object that is not larger is not worth it.
SMALL_BYTES = 1 << 20


class ReadsAhead:
    """Reads objects of a bucket. Methods may be called from any thread.

    One object at a time is read ahead: the one that was begun last.

    Args:
        bucket: Where they are.

    Attributes:
        sizes: Of objects that were listed just now: these are not asked for, once.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.sizes: dict[str, int] = {}
        self._bucket = bucket
        self._pool = ThreadPoolExecutor(RANGES_COUNT, "tune_sync-ranges")
        self._ahead: Ahead | None = None
        self._ahead_lock = threading.Lock()

    def read(self, key: str, offset_bytes: int, length_bytes: int) -> bytes | memoryview:
        """Bytes of an object, fewer at its end."""
        ahead = self._take(key, offset_bytes)
        if ahead is None and not offset_bytes and length_bytes > SMALL_BYTES:
            ahead = Ahead(self._bucket, key, self._pool, self.sizes.pop(key, None))
        if ahead is None:
            return self._read_now(key, offset_bytes, length_bytes)
        try:
            data = ahead.read(length_bytes)
        except BaseException:
            ahead.drop()
            raise
        self._keep(ahead)
        return data

    def _take(self, key: str, offset_bytes: int) -> Ahead | None:
        """What was read ahead, if these are its next bytes. Nobody else has it meanwhile."""
        with self._ahead_lock:
            ahead = self._ahead
            if ahead is None or (ahead.key, ahead.at_bytes) != (key, offset_bytes):
                return None
            self._ahead = None
            return ahead

    def _keep(self, ahead: Ahead) -> None:
        with self._ahead_lock:
            earlier, self._ahead = self._ahead, None if ahead.is_over else ahead
        if earlier is not None:
            earlier.drop()

    def _read_now(self, key: str, offset_bytes: int, length_bytes: int) -> bytes:
        if length_bytes <= RANGE_BYTES:
            return self._bucket.get(key, offset_bytes, length_bytes)
        ends = range(offset_bytes, offset_bytes + length_bytes, RANGE_BYTES)
        last = offset_bytes + length_bytes

        def get(start: int) -> bytes:
            return self._bucket.get(key, start, min(RANGE_BYTES, last - start))

        return b"".join(self._pool.map(get, ends))


class Ahead:
    """One object, read ahead. One thread at a time may use it.

    Args:
        bucket: Where it is.
        key: Its name.
        pool: Makes requests.
        size_bytes: Its length, if that is known.
    """

    def __init__(
        self, bucket: Bucket, key: str, pool: Executor, size_bytes: int | None = None
    ) -> None:
        self.key = key
        self.at_bytes = 0
        self._bucket = bucket
        self._pool = pool
        self._known_bytes = size_bytes
        self._info = pool.submit(bucket.info, key) if size_bytes is None else None
        self._ranges: deque[tuple[int, Future[bytes]]] = deque()
        self._next_bytes = 0

    @property
    def is_over(self) -> bool:
        """Whether all was read."""
        is_known = self._info is None or self._info.done()
        return is_known and self.at_bytes >= self._size_bytes()

    def read(self, length_bytes: int) -> bytes | memoryview:
        """The next bytes; fewer at the end."""
        if self._info is not None:
            self._fill(self.at_bytes + length_bytes)  # at once: the size may not be known yet
        end_bytes = min(self.at_bytes + length_bytes, self._size_bytes())
        self._fill(self._size_bytes())
        found: list[memoryview] = []
        while self.at_bytes < end_bytes:
            self._fill(self._size_bytes())
            start, future = self._ranges[0]
            data = memoryview(future.result())[self.at_bytes - start : end_bytes - start]
            if not data:
                break  # it has become shorter
            found.append(data)
            self.at_bytes += len(data)
            if self.at_bytes >= min(start + RANGE_BYTES, self._size_bytes()):
                self._ranges.popleft()
        self._fill(self._size_bytes())
        return found[0] if len(found) == 1 else b"".join(found)

    def drop(self) -> None:
        """Nothing more will be read."""
        for _, future in self._ranges:
            future.cancel()
        self._ranges.clear()

    def _fill(self, end_bytes: int) -> None:
        while self._next_bytes < end_bytes and len(self._ranges) < RANGES_COUNT:
            start = self._next_bytes
            future = self._pool.submit(self._bucket.get, self.key, start, RANGE_BYTES)
            self._ranges.append((start, future))
            self._next_bytes += RANGE_BYTES

    def _size_bytes(self) -> int:
        if self._known_bytes is None:
            found = self._info.result() if self._info is not None else None
            if found is None:
                raise FileNotFoundError(self.key)
            self._known_bytes = found.size_bytes
        return self._known_bytes
