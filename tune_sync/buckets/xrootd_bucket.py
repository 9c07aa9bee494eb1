"""A bucket through the client of XRootD, which disks of physics sites are reached by.

Not through `fsspec-xrootd`, which keeps files open that were replaced since, and tells no missing
file from an error; Ray reads through that when it restores. XRootD has directories and a rename
that replaces: so an object is written aside and renamed into its place, whole.
"""

from __future__ import annotations

import builtins
import errno
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from tune_sync.buckets.bucket import Capabilities, ObjectInfo, check_object_key
from tune_sync.errors import PathRefusedError, PutConflictError

# What is on its way is at the root, under such a name, and is no object.
ASIDE = ".tune_sync-aside-"
# Nobody writes one object for so long: what is older was left by a writer that was killed.
ASIDE_S = 86_400.0

READ_BYTES = 8 << 20
# Somebody may remove an empty directory just before a file is put into it.
PLACINGS_COUNT = 3

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
# What a server answers: https://xrootd.web.cern.ch/doc/dev56/XRdv520.pdf, "error codes".
_ANSWERED = 400
_BY_ANSWER: dict[int, type[OSError]] = {
    3010: PermissionError, 3030: PermissionError, 3028: PermissionError,
    3011: FileNotFoundError, 3016: IsADirectoryError, 3018: FileExistsError,
    3008: ConnectionError, 3012: ConnectionError, 3014: ConnectionError, 3024: ConnectionError,
}  # fmt: skip
_FULL = {3009: errno.ENOSPC, 3021: errno.EDQUOT, 3025: errno.EROFS}
# What the client says by itself.
_NOT_ALLOWED = (204, 205)
_PARTIAL = 1


class XrootdBucket:
    """See `bucket.Bucket`.

    Args:
        host: "host:port".
        root: Absolute path of the root there.
        timeout_s: Seconds that a request may take. The client looks every 15 s.
    """

    def __init__(self, host: str, root: str, timeout_s: float) -> None:
        from XRootD import client
        from XRootD.client import flags

        self._client: Any = client
        self._flags: Any = flags
        self._url = f"root://{host}/"
        self._root = root.rstrip("/")
        self._timeout_s = max(1, round(timeout_s))
        self.rebuild()

    def rebuild(self) -> None:
        """A new client, with the credentials of now."""
        self._fs = self._client.FileSystem(self._url)

    def check(self, *, tidies: bool = False) -> None:
        """See `Client.check`."""
        for entry in self._listed(""):
            is_aside = tidies and entry.name.startswith(ASIDE)
            if is_aside and time.time() - entry.statinfo.modtime > ASIDE_S:
                self.delete([entry.name])

    @property
    def capabilities(self) -> Capabilities:
        """See `Bucket.capabilities`."""
        return Capabilities(conditional_put=False, etags=False)

    def info(self, key: str) -> ObjectInfo | None:
        """See `Bucket.info`."""
        try:
            found = self._do(self._fs.stat, self._path(key))
        except _ABSENT:
            return None
        return None if self._is_dir(found) else _object(key, found)

    def list(self, prefix: str) -> list[ObjectInfo]:
        """See `Bucket.list`."""
        return sorted(self._walk(prefix), key=lambda found: found.key)

    def list_dir(self, prefix: str) -> tuple[builtins.list[ObjectInfo], builtins.list[str]]:
        """See `Bucket.list_dir`."""
        objects, directories = self._entries(prefix)
        return sorted(objects, key=lambda found: found.key), sorted(directories)

    def get(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """See `Bucket.get`."""
        file = self._open(self._path(key), self._flags.OpenFlags.READ)
        try:
            pieces = self._pieces(file, offset_bytes, length_bytes)
            return b"".join(pieces)
        finally:
            file.close(timeout=self._timeout_s)

    def put(
        self, key: str, data: bytes | memoryview, *, create_only: bool = False, if_match: str = ""
    ) -> str:
        """See `Bucket.put`."""
        if create_only and self.info(key) is not None:
            raise PutConflictError(f"{key} exists: another writer was first")
        return self.put_stream(key, [data])

    def put_stream(
        self, key: str, chunks: Iterable[bytes | memoryview], size_bytes: int | None = None
    ) -> str:
        """See `Bucket.put_stream`."""
        path, aside = self._path(key), self._path(f"{ASIDE}{uuid.uuid4().hex}")
        try:
            self._write(aside, chunks)
            self._place(aside, path)
        except BaseException:
            with suppress(Exception):  # what goes wrong here must not hide why
                self._do(self._fs.rm, aside)
            raise
        return ""

    def delete(self, keys: Sequence[str]) -> None:
        """See `Bucket.delete`. A directory goes with the last object in it."""
        paths = [self._path(key) for key in keys]
        for path in paths:
            with suppress(*_ABSENT):
                self._do(self._fs.rm, path)
        for directory in sorted({p.rpartition("/")[0] for p in paths}, key=len, reverse=True):
            self._prune(directory)

    # Inside

    def _write(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        flags = self._flags.OpenFlags
        file, position = self._open(path, flags.NEW | flags.MAKEPATH), 0
        try:
            for chunk in chunks:
                data = bytes(chunk)
                self._do(file.write, data, position)
                position += len(data)
            self._do(file.sync)
        except BaseException:
            file.close(timeout=self._timeout_s)
            raise
        self._do(file.close)

    def _place(self, aside: str, path: str) -> None:
        for left in range(PLACINGS_COUNT - 1, -1, -1):
            try:
                self._do(self._fs.mv, aside, path)
                return
            except FileNotFoundError:
                if not left:
                    raise

    def _prune(self, directory: str) -> None:
        """Remove a directory and those above it, as far as they are empty."""
        while directory.startswith(f"{self._root}/"):
            try:
                self._do(self._fs.rmdir, directory)
            except Exception:  # not empty, in all likelihood; one that stays is no object
                return
            directory = directory.rpartition("/")[0]

    def _pieces(self, file: Any, offset_bytes: int, length_bytes: int | None) -> Iterator[bytes]:
        left = length_bytes
        while left is None or left > 0:
            wanted = READ_BYTES if left is None else min(READ_BYTES, left)
            piece = bytes(self._do(file.read, offset_bytes, wanted))
            yield piece
            if len(piece) < wanted:
                return
            offset_bytes += len(piece)
            left = None if left is None else left - len(piece)

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        objects, directories = self._entries(prefix)
        yield from objects
        for directory in directories:
            yield from self._walk(directory)

    def _entries(self, prefix: str) -> tuple[builtins.list[ObjectInfo], builtins.list[str]]:
        start = f"{prefix}/" if prefix else ""
        found = [
            entry for entry in self._listed(prefix) if start or not entry.name.startswith(ASIDE)
        ]
        infos = {f"{start}{entry.name}": entry.statinfo for entry in found}
        objects = [_object(key, info) for key, info in infos.items() if not self._is_dir(info)]
        return objects, [key for key, info in infos.items() if self._is_dir(info)]

    def _listed(self, prefix: str) -> builtins.list[Any]:
        try:
            found = self._do(self._fs.dirlist, self._path(prefix), self._flags.DirListFlags.STAT)
        except _ABSENT:
            return []
        return list(found)

    def _is_dir(self, found: Any) -> bool:
        return bool(found.flags & self._flags.StatInfoFlags.IS_DIR)

    def _open(self, path: str, flags: Any) -> Any:
        file = self._client.File()
        self._do(file.open, f"{self._url}{path}", flags)
        return file

    def _do(self, call: Any, *arguments: Any) -> Any:
        status, answer = call(*arguments, timeout=self._timeout_s)
        if not status.ok or status.code == _PARTIAL:
            raise _error(status)
        return answer

    def _path(self, key: str) -> str:
        if "?" in key:
            raise PathRefusedError(f"{key!r}: XRootD ends a name at its question mark; rename it")
        return f"{self._root}/{check_object_key(key)}" if key else self._root


def _object(key: str, found: Any) -> ObjectInfo:
    return ObjectInfo(key, int(found.size), float(found.modtime))


def _error(status: Any) -> OSError:
    """What a status says, as the builtin error that it is."""
    text = " ".join(str(status.message).split())
    if status.code != _ANSWERED:
        kind = PermissionError if status.code in _NOT_ALLOWED else ConnectionError
        return kind(text)
    if status.errno in _FULL:
        number = _FULL[status.errno]
        return OSError(number, os.strerror(number))
    if "not a directory" in text:
        return NotADirectoryError(text)
    return _BY_ANSWER.get(status.errno, OSError)(text)
