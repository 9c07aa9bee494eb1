"""What is common to buckets that have directories and a rename that replaces, and are no disk.

An object is written aside and renamed into its place, whole. Aside is at the root, under a name of
its own, and is no object.
"""

from __future__ import annotations

import builtins
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tune_sync.buckets.bucket import Capabilities, ObjectInfo, check_object_key
from tune_sync.errors import PutConflictError

ASIDE = ".tune_sync-aside-"
# Nobody writes one object for so long: what is older was left by a writer that was killed.
ASIDE_S = 86_400.0
# Somebody may remove an empty directory just before a file is put into it.
PLACINGS_COUNT = 3

ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


@dataclass(frozen=True, slots=True)
class Entry:
    """What a server says of a file or a directory.

    Attributes:
        name: In its directory; "" where that was not asked for.
        is_dir: Whether it is a directory.
        size_bytes: Of a file.
        modified_s: Seconds since 1970.
    """

    name: str
    is_dir: bool
    size_bytes: int
    modified_s: float


class RenamingBucket:
    """See `bucket.Bucket`. Those who inherit say how each step is done.

    Their steps raise one of `ABSENT` for what is not there, and any other error for the rest.

    Args:
        root: Absolute path of the root on the server.
    """

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")

    def check(self, *, tidies: bool = False) -> None:
        """See `Client.check`."""
        for entry in self._listed(""):
            is_aside = tidies and entry.name.startswith(ASIDE)
            if is_aside and time.time() - entry.modified_s > ASIDE_S:
                self.delete([entry.name])

    @property
    def capabilities(self) -> Capabilities:
        """See `Bucket.capabilities`."""
        return Capabilities(conditional_put=False, etags=False)

    def info(self, key: str) -> ObjectInfo | None:
        """See `Bucket.info`."""
        try:
            found = self._stat(self._path(key))
        except ABSENT:
            return None
        return None if found.is_dir else _object(key, found)

    def list(self, prefix: str) -> list[ObjectInfo]:
        """See `Bucket.list`."""
        return sorted(self._walk(prefix), key=lambda found: found.key)

    def list_dir(self, prefix: str) -> tuple[builtins.list[ObjectInfo], builtins.list[str]]:
        """See `Bucket.list_dir`."""
        objects, directories = self._entries(prefix)
        return sorted(objects, key=lambda found: found.key), sorted(directories)

    def get(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """See `Bucket.get`."""
        return self._read(self._path(key), offset_bytes, length_bytes)

    def put(
        self, key: str, data: bytes | memoryview, *, create_only: bool = False, if_match: str = ""
    ) -> str:
        """See `Bucket.put`."""
        if create_only and self.info(key) is not None:
            raise PutConflictError(f"{key} exists: another writer was first")
        return self._put(key, [data], waits=False)

    def put_stream(
        self, key: str, chunks: Iterable[bytes | memoryview], size_bytes: int | None = None
    ) -> str:
        """See `Bucket.put_stream`."""
        return self._put(key, chunks, waits=True)

    def delete(self, keys: Sequence[str]) -> None:
        """See `Bucket.delete`. A directory goes with the last object in it."""
        paths = [self._path(key) for key in keys]
        for path in paths:
            with suppress(*ABSENT):
                self._remove(path)
        for directory in sorted({p.rpartition("/")[0] for p in paths}, key=len, reverse=True):
            self._prune(directory)

    # The steps

    def _stat(self, path: str) -> Entry:
        raise NotImplementedError

    def _scan(self, path: str) -> builtins.list[Entry]:
        """What is in a directory."""
        raise NotImplementedError

    def _read(self, path: str, offset_bytes: int, length_bytes: int | None) -> bytes:
        raise NotImplementedError

    def _write(self, path: str, chunks: Iterable[bytes | memoryview], *, waits: bool) -> None:
        """Make a new file, durable on return, and the directory it is in.

        `waits`: the next chunk may be long in coming, and take other requests to this server.
        """
        raise NotImplementedError

    def _move(self, aside: str, path: str) -> None:
        """Rename a file, over what is there, and make the directory that it goes to."""
        raise NotImplementedError

    def _remove(self, path: str) -> None:
        """Remove a file."""
        raise NotImplementedError

    def _rmdir(self, path: str) -> None:
        """Remove a directory if it is empty; else raise."""
        raise NotImplementedError

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_object_key(key)}" if key else self._root

    # Inside

    def _put(self, key: str, chunks: Iterable[bytes | memoryview], *, waits: bool) -> str:
        path, aside = self._path(key), self._path(f"{ASIDE}{uuid.uuid4().hex}")
        try:
            self._write(aside, chunks, waits=waits)
            self._place(aside, path)
        except BaseException:
            with suppress(Exception):  # what goes wrong here must not hide why
                self._remove(aside)
            raise
        return ""

    def _place(self, aside: str, path: str) -> None:
        for left in range(PLACINGS_COUNT - 1, -1, -1):
            try:
                self._move(aside, path)
                return
            except FileNotFoundError:
                if not left:
                    raise

    def _prune(self, directory: str) -> None:
        """Remove a directory and those above it, as far as they are empty."""
        while directory.startswith(f"{self._root}/"):
            try:
                self._rmdir(directory)
            except Exception:  # not empty, in all likelihood; one that stays is no object
                return
            directory = directory.rpartition("/")[0]

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        objects, directories = self._entries(prefix)
        yield from objects
        for directory in directories:
            yield from self._walk(directory)

    def _entries(self, prefix: str) -> tuple[builtins.list[ObjectInfo], builtins.list[str]]:
        start = f"{prefix}/" if prefix else ""
        found = {
            f"{start}{entry.name}": entry
            for entry in self._listed(prefix)
            if start or not entry.name.startswith(ASIDE)
        }
        objects = [_object(key, entry) for key, entry in found.items() if not entry.is_dir]
        return objects, [key for key, entry in found.items() if entry.is_dir]

    def _listed(self, prefix: str) -> builtins.list[Entry]:
        try:
            return self._scan(self._path(prefix))
        except ABSENT:
            return []


def _object(key: str, found: Entry) -> ObjectInfo:
    return ObjectInfo(key, found.size_bytes, found.modified_s)
