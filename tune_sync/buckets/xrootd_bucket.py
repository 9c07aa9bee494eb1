"""A bucket through the client of XRootD, which disks of physics sites are reached by.

Not through `fsspec-xrootd`, which keeps files open that were replaced since, and tells no missing
file from an error; Ray reads through that when it restores.
"""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Iterable, Iterator
from typing import Any

from tune_sync.buckets.renaming_bucket import Entry, RenamingBucket
from tune_sync.errors import PathRefusedError

READ_BYTES = 8 << 20

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


class XrootdBucket(RenamingBucket):
    """See `bucket.Bucket`.

    Args:
        host: "host:port".
        root: Absolute path of the root there.
        timeout_s: Seconds that a request may take. The client looks every 15 s.
    """

    def __init__(self, host: str, root: str, timeout_s: float) -> None:
        super().__init__(root)
        from XRootD import client
        from XRootD.client import flags

        self._client: Any = client
        self._flags: Any = flags
        self._url = f"root://{host}/"
        self._timeout_s = max(1, round(timeout_s))
        self.rebuild()

    def rebuild(self) -> None:
        """A new client, with the credentials of now."""
        self._fs = self._client.FileSystem(self._url)

    def _stat(self, path: str) -> Entry:
        return self._entry("", self._do(self._fs.stat, path))

    def _scan(self, path: str) -> builtins.list[Entry]:
        found = self._do(self._fs.dirlist, path, self._flags.DirListFlags.STAT)
        return [self._entry(entry.name, entry.statinfo) for entry in found]

    def _read(self, path: str, offset_bytes: int, length_bytes: int | None) -> bytes:
        file = self._open(path, self._flags.OpenFlags.READ)
        try:
            return b"".join(self._pieces(file, offset_bytes, length_bytes))
        finally:
            file.close(timeout=self._timeout_s)

    def _write(self, path: str, chunks: Iterable[bytes | memoryview], *, waits: bool) -> None:
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

    def _move(self, aside: str, path: str) -> None:
        self._do(self._fs.mv, aside, path)

    def _remove(self, path: str) -> None:
        self._do(self._fs.rm, path)

    def _rmdir(self, path: str) -> None:
        self._do(self._fs.rmdir, path)

    # Inside

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

    def _entry(self, name: str, found: Any) -> Entry:
        is_dir = bool(found.flags & self._flags.StatInfoFlags.IS_DIR)
        return Entry(name, is_dir, int(found.size), float(found.modtime))

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
        return super()._path(key)


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
