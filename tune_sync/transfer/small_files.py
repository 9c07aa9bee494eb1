"""Reads the small files of a checkpoint elsewhere many at a time: a question each takes longer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from tune_sync.homes.home import Home
from tune_sync.homes.store import Info

# Larger ones are worth a question of their own.
SMALL_BYTES = 1 << 20
BATCH_BYTES = 8 << 20
BATCH_COUNT = 2000
# So many batches are fetched before they are asked for.
BATCHES_AHEAD_COUNT = 2
# Readers take turns nearly in the order of the list; one that lags finds its file among these.
LEFT_OVER_COUNT = 64


class SmallFiles:
    """The small files of one listing. Methods may be called from any thread.

    Args:
        home: Where they are.
        listing: What a checkpoint holds, in the order in which it will be read.
    """

    def __init__(self, home: Home, listing: Sequence[Info]) -> None:
        self._home = home
        self._files = [e for e in listing if not e.is_dir and e.size_bytes <= SMALL_BYTES]
        self._numbers = {entry.key: number for number, entry in enumerate(self._files)}
        self._ahead: dict[str, bytes] = {}
        self._fetched_to = 0
        self._fetch_lock = threading.Lock()  # one fetch serves all who wait for it
        self._coming: deque[_Batch] = deque()
        self._threads = ThreadPoolExecutor(BATCHES_AHEAD_COUNT, "tune_sync-small-files")

    def take(self, key: str) -> bytes | None:
        """All bytes of a file; None if it is not one of these."""
        number = self._numbers.get(key)
        if number is None:
            return None
        with self._fetch_lock:
            if number >= self._fetched_to:
                self._fetch(number)
            elif key not in self._ahead:
                return self._home.read_many([key])[0]
            return self._ahead.pop(key)

    def _fetch(self, number: int) -> None:
        # Readers overtake each other: the one that comes first may not ask for the next file.
        while self._coming and self._coming[0].end <= number:
            self._coming.popleft()
        if not self._coming or self._coming[0].number > number:
            self._coming.clear()
            self._begin(number)
        batch = self._coming.popleft()
        self._begin_ahead(batch)
        left_over = list(self._ahead.items())[-LEFT_OVER_COUNT:]
        self._ahead, self._fetched_to = dict(left_over), batch.end
        self._ahead.update(zip(batch.keys, batch.contents.result(), strict=True))

    def _begin_ahead(self, last: _Batch) -> None:
        if self._coming:
            last = self._coming[-1]
        while len(self._coming) < BATCHES_AHEAD_COUNT and last.end < len(self._files):
            last = self._begin(last.end)

    def _begin(self, number: int) -> _Batch:
        keys: list[str] = []
        size_bytes = 0
        for entry in self._files[number : number + BATCH_COUNT]:
            size_bytes += entry.size_bytes
            if keys and size_bytes > BATCH_BYTES:
                break
            keys.append(entry.key)
        batch = _Batch(number, keys, self._threads.submit(self._home.read_many, keys))
        self._coming.append(batch)
        return batch


@dataclass(frozen=True)
class _Batch:
    number: int
    keys: list[str]
    contents: Future[list[bytes]]

    @property
    def end(self) -> int:
        """Number of the first file after it."""
        return self.number + len(self.keys)
