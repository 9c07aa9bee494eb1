"""What of this host's memory peers may write and read, whatever transport they come by.

Bytes arrive in an *attempt*, which nobody sees. It becomes visible when all its bytes are there,
each compared with its digest, and nobody writes any more: never before, and never half.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from tune_sync.errors import (
    ConfigError,
    ImmutableError,
    NotWholeError,
    PathRefusedError,
    StoreError,
    StoreFullError,
)
from tune_sync.fastpath.slot import Slot
from tune_sync.fastpath.transports.coverage import Coverage

logger = logging.getLogger(__name__)

HANDLE_BYTES = 16
MAX_KEY_BYTES = 1024
# A slot that is on its way is waited for; making one takes as long as its pages take.
SLOT_WAIT_S = 10.0


class StillReachedError(StoreError):
    """A peer that was lent memory may still reach it: its card could not be made to stop."""


class Pool(Protocol):
    """Where slots come from: `tune_sync.fastpath.Slots`."""

    def take(self, need_bytes: int, *, wait_s: float) -> Slot | None: ...

    def give_back(self, slot: Slot) -> None: ...

    def keep(self, slot: Slot) -> None:
        """It never comes back."""


@dataclass(frozen=True, slots=True)
class Held:
    """What is held under a key.

    Attributes:
        key: Its key.
        size_bytes: Its length.
        handle: Names these bytes, and no others that are ever held under the key.
    """

    key: str
    size_bytes: int
    handle: bytes


@dataclass(slots=True, eq=False)
class _Attempt:
    """Guarded by the shelf's lock."""

    held: Held
    slot: Slot
    coverage: Coverage = field(default_factory=Coverage)
    writer_count: int = 0
    reader_count: int = 0
    is_whole: bool = False
    is_dropped: bool = False


class Shelf:
    """Holds bytes in slots, each under a key. Methods may be called from any thread.

    Args:
        pool: Gives the memory, and bounds it.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._attempts: dict[bytes, _Attempt] = {}
        self._whole: dict[str, _Attempt] = {}
        self._written_bytes = self._read_bytes = 0
        self._kept: list[Slot] = []  # others would find what a peer writes late

    @property
    def written_bytes(self) -> int:
        """Bytes that arrived whole, ever."""
        return self._written_bytes

    @property
    def read_bytes(self) -> int:
        """Bytes that were read to the end, ever."""
        return self._read_bytes

    @property
    def held_count(self) -> int:
        """What is held, whole or not."""
        with self._lock:
            return len(self._attempts)

    def reserve(self, key: str, size_bytes: int) -> Held:
        """Begin an attempt at `key`, with memory of its own. Nobody sees it.

        Raises:
            PathRefusedError: `key` is not a path of plain parts.
            ImmutableError: Something whole is held under `key`, and never changes.
            StoreFullError: The pool has no slot.
        """
        check_key(key)
        if size_bytes < 1:
            raise ConfigError(f"cannot hold {size_bytes} bytes under {key}; give at least one")
        with self._lock:
            self._refuse_whole(key)
        slot = self._pool.take(size_bytes, wait_s=SLOT_WAIT_S)
        if slot is None:
            raise StoreFullError(
                f"no memory for {size_bytes} bytes of {key} on this host; take another way, or "
                "give the slots more memory (see the warnings on that host)"
            )
        held = Held(key, size_bytes, secrets.token_bytes(HANDLE_BYTES))
        with self._lock:
            self._attempts[held.handle] = _Attempt(held, slot)
        return held

    @contextmanager
    def writing(self, handle: bytes, offset_bytes: int, length_bytes: int) -> Iterator[memoryview]:
        """Memory to fill. Its bytes count as there when the block ends without an error.

        Raises:
            FileNotFoundError: The attempt was dropped.
            PathRefusedError: The range is not within it.
            ImmutableError: It is whole already.
            StillReachedError: The caller's. The attempt never becomes whole, and its memory is
                used for nothing else as long as this process lives.
        """
        end_bytes = offset_bytes + length_bytes
        with self._lock:
            attempt = self._find(handle, offset_bytes, length_bytes)
            if attempt.is_whole:
                raise _immutable(attempt.held.key)
            attempt.writer_count += 1
        is_there = False
        try:
            with _view(attempt.slot, offset_bytes, end_bytes) as view:
                yield view
            is_there = True
        except StillReachedError as error:
            self._keep(attempt, error)
            raise
        finally:
            with self._lock:
                attempt.writer_count -= 1
                # Again after a failure: another writer of these bytes may have ended meanwhile.
                change = attempt.coverage.add if is_there else attempt.coverage.remove
                change(offset_bytes, end_bytes)
                self._written_bytes += length_bytes if is_there else 0
            self._give_back_unused(attempt)

    @contextmanager
    def reading(self, handle: bytes, offset_bytes: int, length_bytes: int) -> Iterator[memoryview]:
        """Bytes of what is whole; they stay as they are until the block ends.

        Raises:
            FileNotFoundError: It is not held any more, or not whole.
            PathRefusedError: The range is not within it.
        """
        with self._lock:
            attempt = self._find(handle, offset_bytes, length_bytes)
            if not attempt.is_whole:
                raise FileNotFoundError(f"{attempt.held.key} is not whole; read it when it is")
            attempt.reader_count += 1
        try:
            with _view(attempt.slot, offset_bytes, offset_bytes + length_bytes) as view:
                yield view
            with self._lock:
                self._read_bytes += length_bytes
        except StillReachedError as error:
            self._keep(attempt, error)
            raise
        finally:
            with self._lock:
                attempt.reader_count -= 1
            self._give_back_unused(attempt)

    def publish(self, handle: bytes) -> None:
        """Make an attempt visible. May be repeated.

        Raises:
            NotWholeError: Bytes are missing, or are being written.
            ImmutableError: Another attempt was first.
            FileNotFoundError: The attempt was dropped.
        """
        with self._lock:
            attempt = self._find(handle, 0, 0)
            if attempt.is_whole:
                return
            self._refuse_whole(attempt.held.key)
            gap = attempt.coverage.gap(attempt.held.size_bytes)
            if attempt.writer_count or gap:
                what = f"bytes {gap[0]} to {gap[1]} are missing" if gap else "it is being written"
                raise NotWholeError(f"{attempt.held.key} is not whole: {what}; write it again")
            attempt.is_whole = True
            self._whole[attempt.held.key] = attempt

    def held(self, handle: bytes) -> Held:
        """What a handle names, whole or not. Raises FileNotFoundError once it is not held."""
        with self._lock:
            return self._find(handle, 0, 0).held

    def find(self, key: str) -> Held | None:
        """What is held under `key`, if it is whole.

        Raises:
            PathRefusedError: `key` is not a path of plain parts.
        """
        check_key(key)
        with self._lock:
            attempt = self._whole.get(key)
            return attempt.held if attempt else None

    def drop(self, handle: bytes) -> None:
        """End an attempt that is not whole. May be repeated; what is whole stays."""
        with self._lock:
            attempt = self._attempts.get(handle)
            if attempt is None or attempt.is_whole:
                return
            self._take_out(attempt)
        self._give_back_unused(attempt)

    def remove(self, key: str) -> None:
        """Hold nothing whole under `key` any more. May be repeated. Readers read to their end."""
        check_key(key)
        with self._lock:
            attempt = self._whole.get(key)
            if attempt is None:
                return
            self._take_out(attempt)
        self._give_back_unused(attempt)

    def close(self) -> None:
        """Give all memory back, as soon as nobody is at it any more."""
        with self._lock:
            attempts = list(self._attempts.values())
            for attempt in attempts:
                self._take_out(attempt)
        for attempt in attempts:
            self._give_back_unused(attempt)

    def _keep(self, attempt: _Attempt, why: StillReachedError) -> None:
        """Never give its memory back."""
        with self._lock:
            if attempt.slot in self._kept:
                return
            self._kept.append(attempt.slot)
            attempt.reader_count += 1
            if not attempt.is_whole:
                attempt.writer_count += 1
        self._pool.keep(attempt.slot)
        logger.error(
            "%d bytes of memory stay taken until this process ends, as a peer may still reach "
            "them: %s", len(attempt.slot.memory), why,
        )  # fmt: skip

    def _take_out(self, attempt: _Attempt) -> None:
        attempt.is_dropped = True
        del self._attempts[attempt.held.handle]
        if attempt.is_whole:
            del self._whole[attempt.held.key]

    def _give_back_unused(self, attempt: _Attempt) -> None:
        with self._lock:
            if not attempt.is_dropped or attempt.writer_count or attempt.reader_count:
                return
            attempt.is_dropped = False  # whoever comes second gives nothing back
        self._pool.give_back(attempt.slot)

    def _find(self, handle: bytes, offset_bytes: int, length_bytes: int) -> _Attempt:
        attempt = self._attempts.get(handle)
        if attempt is None:
            raise FileNotFoundError("what is asked for is not held here any more; begin again")
        end_bytes = offset_bytes + length_bytes
        if min(offset_bytes, length_bytes) < 0 or end_bytes > attempt.held.size_bytes:
            raise PathRefusedError(
                f"{attempt.held.key} has {attempt.held.size_bytes} bytes; "
                f"{length_bytes} at {offset_bytes} are not within; ask for less"
            )
        return attempt

    def _refuse_whole(self, key: str) -> None:
        if key in self._whole:
            raise _immutable(key)


def check_key(key: str) -> None:
    """Refuse what is not a relative path of plain parts, though keys name no files.

    Raises:
        PathRefusedError: It is not.
    """
    parts = key.split("/")
    is_plain = all(part not in ("", ".", "..") for part in parts) and key.isprintable()
    if not is_plain or len(key.encode("utf-8", "replace")) > MAX_KEY_BYTES:
        raise PathRefusedError(f"{key[:100]!r} cannot be a key; give a relative path, as a/b")


@contextmanager
def _view(slot: Slot, start_bytes: int, end_bytes: int) -> Iterator[memoryview]:
    whole = memoryview(slot.memory)
    view = whole[start_bytes:end_bytes]
    try:
        yield view
    finally:
        with contextlib.suppress(BufferError):
            view.release()
            whole.release()


def _immutable(key: str) -> ImmutableError:
    return ImmutableError(f"{key} is held whole, and never changes; take another key")
