"""A bucket: few blocking verbs on objects below one root. It orders nothing.

What orders writes in one is `homes.bucket.commit`.

Objects are whole or absent: there is no rename, no directory and no partial write. Keys are POSIX
strings relative to the root.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tune_sync.errors import PathRefusedError
from tune_sync.layout import check_key

# Limits of S3, which others share or exceed.
MAX_PARTS_COUNT = 10_000
MAX_PART_BYTES = 5 << 30
MAX_OBJECT_BYTES = 5 << 40
# Smaller parts cost a request each for no speed; larger ones only memory.
PART_BYTES = 16 << 20
# A stream of unknown length: 10,000 of these are 160 GB. Larger ones leave room for fewer at once.
UNKNOWN_PART_BYTES = 16 << 20
MAX_UNKNOWN_BYTES = UNKNOWN_PART_BYTES * MAX_PARTS_COUNT

# Parts of a stream are tried again by the library: only it still has their bytes.
PART_RETRIES_COUNT = 10


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object.

    Attributes:
        key: Relative to the root.
        size_bytes: Its length.
        modified_s: Seconds since the epoch, by the store's clock.
        etag: Changes when the bytes do; "" where the store has none.
    """

    key: str
    size_bytes: int
    modified_s: float
    etag: str = ""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a bucket can do, as data.

    Attributes:
        conditional_put: `put` knows `create_only` and `if_match`; else both only look before.
        etags: `ObjectInfo.etag` is filled.
        stream_bytes: The largest object of a stream whose size is told.
        unknown_bytes: The largest of one whose size is not known before its end.
        larger: What to do about a larger one, for messages; "" if there is no way.
        marks_streams: `put_stream` by itself tells its own object from another writer's, when the
            answer to its end was lost.
        times: `ObjectInfo.modified_s` is filled in each answer of the store itself.
    """

    conditional_put: bool
    etags: bool
    stream_bytes: int = MAX_OBJECT_BYTES
    unknown_bytes: int = MAX_UNKNOWN_BYTES
    larger: str = ""
    marks_streams: bool = False
    times: bool = False


class Bucket(Protocol):
    """Every verb may be called from any thread, and twice. Nothing is answered from a cache.

    What `put` or `put_stream` returned for is durable. Errors: `StoreDeniedError` (credentials,
    permission), `StoreUnreachableError` (after all tries), `ConfigError` (no such bucket, wrong
    region), `PathRefusedError` (a key that leaves the root, or that stores cannot keep),
    `FileNotFoundError` only for what is surely not there, and `OSError` for the rest.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""

    def info(self, key: str) -> ObjectInfo | None:
        """What `key` is; None only if it is surely not there."""

    def list(self, prefix: str) -> list[ObjectInfo]:
        """All objects below the directory `prefix`, sorted by key; "" is the root."""

    def list_dir(self, prefix: str) -> tuple[builtins.list[ObjectInfo], builtins.list[str]]:
        """Objects directly in the directory `prefix`, and the keys of directories in it.

        Where a store or its library knows empty directories, these are among them.
        """

    def get(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """Bytes of an object, fewer at its end."""

    def put(
        self, key: str, data: bytes | memoryview, *, create_only: bool = False, if_match: str = ""
    ) -> str:
        """Store an object; returns its e-tag, or "".

        Args:
            key: Its name.
            data: All of its bytes.
            create_only: Raise `PutConflictError` if it exists.
            if_match: Raise `PutConflictError` unless it exists with this e-tag.
        """

    def put_stream(
        self, key: str, chunks: Iterable[bytes | memoryview], size_bytes: int | None = None
    ) -> str:
        """Store an object chunk by chunk, with bounded memory; returns its e-tag, or "".

        If `chunks` raises, the upload is given up, and so does this.

        Args:
            key: Its name.
            chunks: Its bytes. Each chunk may be reused once the next was asked for.
            size_bytes: How many there will be, if that is known: sets the size of parts.
        """

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; fine if some are not there."""


def part_size_bytes(size_bytes: int | None) -> int:
    """How large the parts of an upload are, so that no file needs over `MAX_PARTS_COUNT`.

    Args:
        size_bytes: Of the whole; None if it is not known.
    """
    if size_bytes is None:
        return UNKNOWN_PART_BYTES
    needed = -(-size_bytes // MAX_PARTS_COUNT)
    mebibyte = 1 << 20
    return min(MAX_PART_BYTES, max(PART_BYTES, -(-needed // mebibyte) * mebibyte))


def check_object_key(key: str) -> str:
    """Return `key` if every store can keep it under this very name.

    Raises:
        PathRefusedError: It leaves the root, or has a control character or a backslash.
    """
    if any(ord(c) < 32 or ord(c) == 127 or c == "\\" for c in key):
        raise PathRefusedError(
            f"{key!r}: buckets cannot keep names with control characters or backslashes; "
            "rename the file"
        )
    return check_key(key)


class Rooted:
    """Keys as paths of a library that knows no roots.

    Args:
        root: Path of the root in it.
    """

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_object_key(key)}" if key else self._root

    def _key(self, path: str) -> str:
        return path.strip("/").removeprefix(self._root.strip("/")).strip("/")
