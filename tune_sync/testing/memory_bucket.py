"""A bucket in memory that knows conditional puts, and one that dies at a chosen request."""

from __future__ import annotations

import builtins
import hashlib
import itertools
import threading
from collections.abc import Iterable, Sequence
from typing import Literal

from tune_sync.buckets.bucket import Capabilities, ObjectInfo, check_object_key
from tune_sync.errors import PutConflictError
from tune_sync.testing.fault_store import Crashed


class MemoryBucket:
    """See `buckets.bucket.Bucket`. Whole objects, strictly consistent, as S3 is.

    Attributes:
        objects: Key -> bytes.
    """

    def __init__(self, *, conditional_put: bool = True) -> None:
        self.objects: dict[str, bytes] = {}
        self._capabilities = Capabilities(conditional_put, etags=True)
        self._modified: dict[str, float] = {}
        self._times = itertools.count(1)
        self._objects_lock = threading.RLock()

    @property
    def capabilities(self) -> Capabilities:
        """See `Bucket.capabilities`."""
        return self._capabilities

    def rebuild(self) -> None:
        """Nothing."""

    def check(self, *, tidies: bool = False) -> None:
        """Nothing."""

    def copy(self) -> MemoryBucket:
        """A bucket with the same objects."""
        twin = MemoryBucket(conditional_put=self._capabilities.conditional_put)
        twin.objects, twin._modified = dict(self.objects), dict(self._modified)
        return twin

    def info(self, key: str) -> ObjectInfo | None:
        """See `Bucket.info`."""
        with self._objects_lock:
            return self._info(key) if check_object_key(key) in self.objects else None

    def list(self, prefix: str) -> list[ObjectInfo]:
        """See `Bucket.list`."""
        start = f"{check_object_key(prefix)}/" if prefix else ""
        with self._objects_lock:
            return [self._info(key) for key in sorted(self.objects) if key.startswith(start)]

    def list_dir(self, prefix: str) -> tuple[builtins.list[ObjectInfo], builtins.list[str]]:
        """See `Bucket.list_dir`."""
        start = f"{prefix}/" if prefix else ""
        found = self.list(prefix)
        inner = {o.key.removeprefix(start).partition("/")[0] for o in found if o.key != prefix}
        direct = [o for o in found if o.key.removeprefix(start) in inner]
        names = {o.key.removeprefix(start) for o in direct}
        return direct, sorted(start + name for name in inner - names)

    def get(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """See `Bucket.get`."""
        with self._objects_lock:
            if check_object_key(key) not in self.objects:
                raise FileNotFoundError(key)
            end = None if length_bytes is None else offset_bytes + length_bytes
            return self.objects[key][offset_bytes:end]

    def put(
        self, key: str, data: bytes | memoryview, *, create_only: bool = False, if_match: str = ""
    ) -> str:
        """See `Bucket.put`."""
        with self._objects_lock:
            found = self._info(key) if check_object_key(key) in self.objects else None
            if create_only and found is not None:
                raise PutConflictError(f"{key} exists")
            if if_match and (found is None or found.etag != if_match):
                raise PutConflictError(f"{key} has changed")
            self.objects[key] = bytes(data)
            self._modified[key] = float(next(self._times))
            return self._info(key).etag

    def put_stream(
        self, key: str, chunks: Iterable[bytes | memoryview], size_bytes: int | None = None
    ) -> str:
        """See `Bucket.put_stream`."""
        return self.put(key, b"".join(bytes(chunk) for chunk in chunks))

    def delete(self, keys: Sequence[str]) -> None:
        """See `Bucket.delete`."""
        with self._objects_lock:
            for key in keys:
                self.objects.pop(check_object_key(key), None)

    def _info(self, key: str) -> ObjectInfo:
        data = self.objects[key]
        etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        return ObjectInfo(key, len(data), self._modified.get(key, 0.0), etag)


class FaultBucket(MemoryBucket):
    """Dies at change number `at_count`, before, half way or after it; then every call raises.

    Args:
        base: Its objects are shared.
        at_count: From 1; 0 for never.
        when: "half" removes the first half of the keys of a `delete`, else it is "before".
    """

    def __init__(
        self, base: MemoryBucket, at_count: int, when: Literal["before", "half", "after"]
    ) -> None:
        super().__init__(conditional_put=base.capabilities.conditional_put)
        self.objects, self._modified = base.objects, base._modified
        self._at_count = at_count
        self._when = when
        self.changes: list[str] = []
        self.dead = False

    def info(self, key: str) -> ObjectInfo | None:
        """See `Bucket.info`."""
        self._check()
        return super().info(key)

    def list(self, prefix: str) -> list[ObjectInfo]:
        """See `Bucket.list`."""
        self._check()
        return super().list(prefix)

    def get(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """See `Bucket.get`."""
        self._check()
        return super().get(key, offset_bytes, length_bytes)

    def put(
        self, key: str, data: bytes | memoryview, *, create_only: bool = False, if_match: str = ""
    ) -> str:
        """See `Bucket.put`."""
        self._change(f"put {key}")
        etag = super().put(key, data, create_only=create_only, if_match=if_match)
        self._check()
        return etag

    def delete(self, keys: Sequence[str]) -> None:
        """See `Bucket.delete`."""
        try:
            self._change(f"delete {keys}")
        except Crashed:
            if self._when == "half":
                super().delete(keys[: len(keys) // 2])
            raise
        super().delete(keys)
        self._check()

    def _check(self) -> None:
        if self.dead:
            raise Crashed("the process is dead")

    def _change(self, what: str) -> None:
        self._check()
        self.changes.append(what)
        if len(self.changes) == self._at_count:
            self.dead = True
            if self._when != "after":
                raise Crashed(what)
