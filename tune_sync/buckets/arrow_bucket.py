"""A bucket through a pyarrow filesystem: S3, Google, a directory, or any fsspec filesystem."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow.fs as pafs

from tune_sync.buckets.bucket import Capabilities, ObjectInfo, check_object_key
from tune_sync.errors import PutConflictError


class ArrowBucket:
    """See `bucket.Bucket`.

    Args:
        make: Makes the filesystem; called again by `rebuild`.
        root: Path of the root on it.
        makes_dirs: The filesystem has directories, which must exist before a file in them.
    """

    def __init__(
        self, make: Callable[[], pafs.FileSystem], root: str, *, makes_dirs: bool = False
    ) -> None:
        self._make = make
        self._root = root.rstrip("/")
        self._makes_dirs = makes_dirs
        self._fs = make()

    def rebuild(self) -> None:
        """A new client, with the credentials of now."""
        self._fs = self._make()

    @property
    def capabilities(self) -> Capabilities:
        """See `Bucket.capabilities`."""
        return Capabilities(conditional_put=False, etags=False)

    def info(self, key: str) -> ObjectInfo | None:
        """See `Bucket.info`."""
        found = self._fs.get_file_info(self._path(key))
        return self._object(found) if found.type == pafs.FileType.File else None

    def list(self, prefix: str) -> list[ObjectInfo]:
        """See `Bucket.list`."""
        return [self._object(f) for f in self._select(prefix, True) if _is_object(f)]

    def list_dir(self, prefix: str) -> tuple[builtins.list[ObjectInfo], builtins.list[str]]:
        """See `Bucket.list_dir`."""
        found = self._select(prefix, False)
        directories = [self._key(f.path) for f in found if f.type == pafs.FileType.Directory]
        return [self._object(f) for f in found if _is_object(f)], directories

    def get(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """See `Bucket.get`."""
        with self._fs.open_input_file(self._path(key)) as file:
            size_bytes = file.size()
            if offset_bytes >= size_bytes:
                return b""
            left = size_bytes - offset_bytes
            file.seek(offset_bytes)
            data: bytes = file.read(left if length_bytes is None else min(length_bytes, left))
            return data

    def put(self, key: str, data: bytes, *, create_only: bool = False, if_match: str = "") -> str:
        """See `Bucket.put`."""
        if create_only and self.info(key) is not None:
            raise PutConflictError(f"{key} exists: another writer was first")
        return self.put_stream(key, [data] if data else [])

    def put_stream(
        self, key: str, chunks: Iterable[bytes | memoryview], size_bytes: int | None = None
    ) -> str:
        """See `Bucket.put_stream`."""
        path = self._path(key)
        if self._makes_dirs:
            self._fs.create_dir(path.rpartition("/")[0], recursive=True)
        stream = self._fs.open_output_stream(path)
        try:
            for chunk in chunks:
                stream.write(chunk)
            stream.close()
        except BaseException:
            # A stream of pyarrow cannot be given up: it completes when it is dropped.
            self._take_back(stream, path)
            raise
        return ""

    def delete(self, keys: Sequence[str]) -> None:
        """See `Bucket.delete`."""
        for key in keys:
            try:
                self._fs.delete_file(self._path(key))
            except FileNotFoundError:
                continue

    def _take_back(self, stream: Any, path: str) -> None:
        try:
            stream.close()
            self._fs.delete_file(path)
        except OSError:
            return  # no seal names it: nobody takes it for whole

    def _select(self, prefix: str, recursive: bool) -> builtins.list[pafs.FileInfo]:
        base = self._path(prefix)
        selector = pafs.FileSelector(base, allow_not_found=True, recursive=recursive)
        try:
            found = self._fs.get_file_info(selector)
        except NotADirectoryError:
            return []
        return sorted(found, key=lambda f: str(f.path))

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_object_key(key)}" if key else self._root

    def _key(self, path: str) -> str:
        return path.strip("/").removeprefix(self._root.strip("/")).strip("/")

    def _object(self, found: pafs.FileInfo) -> ObjectInfo:
        modified = found.mtime_ns
        return ObjectInfo(
            self._key(found.path), found.size or 0, modified / 1e9 if modified else 0.0
        )


def _is_object(found: pafs.FileInfo) -> bool:
    return bool(found.type == pafs.FileType.File)
