"""A bucket through pyarrow."""

from __future__ import annotations

import builtins
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow.fs as pafs

from tune_sync.buckets.bucket import (
    MAX_OBJECT_BYTES,
    MAX_PARTS_COUNT,
    PART_RETRIES_COUNT,
    Bucket,
    Capabilities,
    ObjectInfo,
    Rooted,
    part_size_bytes,
)
from tune_sync.errors import PutConflictError
from tune_sync.layout import INTERNAL_DIR

# Whatever it is given, pyarrow sends parts of 10 MiB, of which a store takes 10,000.
ONE_REQUEST_BYTES = 10 << 20
MAX_STREAM_BYTES = MAX_PARTS_COUNT * ONE_REQUEST_BYTES

# What replaces an object part by part is first put here, whole.
ASIDE = f"{INTERNAL_DIR}/aside-"
# Nobody writes one object for so long: what is older was left by a writer that was killed.
ASIDE_S = 86_400.0
# Larger objects S3 copies in parts only, which pyarrow does not do.
MAX_COPY_BYTES = 5 << 30


class ArrowBucket(Rooted):
    """See `bucket.Bucket`.

    pyarrow leaves an empty object in place of a directory whose last object was deleted. These are
    no objects here, and `list_dir` names them as directories.

    Args:
        make: Makes the filesystem; given is how often it may try one request again.
        root: Path of the root on it, which starts with the bucket.
        make_larger: Makes a bucket of the same root whose parts grow: it is given what is larger
            than pyarrow's parts can be together. None if no other library is installed.
    """

    def __init__(
        self, make: Callable[[int], pafs.FileSystem], root: str,
        make_larger: Callable[[], Bucket] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(root)
        self._make = make
        self._make_larger = make_larger
        self.rebuild()

    def rebuild(self) -> None:
        """A new client, with the credentials of now."""
        self._fs = self._make(0)
        self._streams = self._make(PART_RETRIES_COUNT)

    def check(self, *, tidies: bool = False) -> None:
        """See `Client.check`."""
        # First: an answer about the bucket alone tells no reason.
        ours, _ = self.list_dir(INTERNAL_DIR)
        left = [o.key for o in ours if tidies and o.key.startswith(ASIDE) and _is_old(o)]
        with suppress(OSError):  # who may not delete is not kept from looking
            self.delete(left)
        self._check_bucket()

    @property
    def capabilities(self) -> Capabilities:
        """See `Bucket.capabilities`."""
        larger = self._make_larger is not None
        return Capabilities(
            conditional_put=False, etags=False, unknown_bytes=MAX_STREAM_BYTES,
            stream_bytes=MAX_OBJECT_BYTES if larger else MAX_STREAM_BYTES,
            larger="" if larger else "pip install obstore on every node",
            times=self._fs.type_name == "s3",
        )  # fmt: skip

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
        try:
            opened = self._fs.open_input_file(self._path(key))
        except FileNotFoundError:
            self._check_bucket()
            raise
        with opened as file:
            size_bytes = file.size()
            if offset_bytes >= size_bytes:
                return b""
            left = size_bytes - offset_bytes
            file.seek(offset_bytes)
            data: bytes = file.read(left if length_bytes is None else min(length_bytes, left))
            return data

    def put(
        self, key: str, data: bytes | memoryview, *, create_only: bool = False, if_match: str = ""
    ) -> str:
        """See `Bucket.put`."""
        if create_only and self.info(key) is not None:
            raise PutConflictError(f"{key} exists: another writer was first")
        if len(data) > ONE_REQUEST_BYTES:
            self._write_aside(self._fs, key, [data])
            return ""
        with self._fs.open_output_stream(self._path(key)) as stream:
            stream.write(data)
        return ""

    def put_stream(
        self, key: str, chunks: Iterable[bytes | memoryview], size_bytes: int | None = None
    ) -> str:
        """See `Bucket.put_stream`."""
        path = self._path(key)
        if self._make_larger is not None and (size_bytes or 0) > MAX_STREAM_BYTES:
            return self._make_larger().put_stream(key, chunks, size_bytes)
        may_copy = size_bytes is not None and size_bytes <= MAX_COPY_BYTES
        if may_copy and self.info(key) is not None:
            self._write_aside(self._streams, key, chunks, part_size_bytes(size_bytes))
        else:
            self._write(self._streams, path, chunks, part_size_bytes(size_bytes))
        return ""

    def delete(self, keys: Sequence[str]) -> None:
        """See `Bucket.delete`."""
        for key in keys:
            try:
                self._fs.delete_file(self._path(key))
            except FileNotFoundError:
                continue

    def _write_aside(
        self, fs: pafs.FileSystem, key: str, chunks: Iterable[bytes | memoryview],
        buffer_bytes: int | None = None,
    ) -> None:  # fmt: skip
        """Replace an object whole: what fails half way leaves what was there."""
        aside = self._path(f"{ASIDE}{uuid.uuid4().hex}")
        try:
            self._write(fs, aside, chunks, buffer_bytes)
            fs.copy_file(aside, self._path(key))
        finally:
            with suppress(OSError):  # `check` removes it later
                fs.delete_file(aside)

    def _write(
        self, fs: pafs.FileSystem, path: str, chunks: Iterable[bytes | memoryview],
        buffer_bytes: int | None,
    ) -> None:  # fmt: skip
        stream = fs.open_output_stream(path, buffer_size=buffer_bytes)
        given_bytes = 0
        try:
            for chunk in chunks:
                given_bytes += len(chunk)
                stream.write(chunk)
        except BaseException:
            # A stream of pyarrow cannot be given up: it completes when it is dropped. And what its
            # end says would hide why.
            self._take_back(stream, path, given_bytes)
            raise
        # If that fails it may yet have ended, and what is there be whole, ours or another writer's.
        stream.close()

    def _take_back(self, stream: Any, path: str, given_bytes: int) -> None:
        with suppress(Exception):
            stream.close()
        with suppress(Exception):  # no seal names it: nobody takes it for whole
            if (self._fs.get_file_info(path).size or 0) > given_bytes:
                return  # another writer's: more than ours can have become
            self._fs.delete_file(path)

    def _check_bucket(self) -> None:
        """Arrow takes a bucket that is not there for an empty one."""
        bucket = self._root.partition("/")[0]
        if self._fs.get_file_info(bucket).type == pafs.FileType.NotFound:
            raise FileNotFoundError(f"NoSuchBucket: there is no bucket {bucket}")

    def _select(self, prefix: str, recursive: bool) -> builtins.list[pafs.FileInfo]:
        base = self._path(prefix)
        selector = pafs.FileSelector(base, allow_not_found=True, recursive=recursive)
        found = self._fs.get_file_info(selector)
        if not found:
            self._check_bucket()
        return sorted(found, key=lambda f: str(f.path))

    def _object(self, found: pafs.FileInfo) -> ObjectInfo:
        modified = found.mtime_ns
        return ObjectInfo(
            self._key(found.path), found.size or 0, modified / 1e9 if modified else 0.0
        )


def _is_old(found: ObjectInfo) -> bool:
    return time.time() - found.modified_s > ASIDE_S


def _is_object(found: pafs.FileInfo) -> bool:
    return bool(found.type == pafs.FileType.File)
