"""A bucket through any fsspec filesystem.

Not through pyarrow's wrapper of these: it asks `exists` and `isfile`, which answer "no" where the
store could not be asked.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from tune_sync.buckets.bucket import Capabilities, ObjectInfo, Rooted, part_size_bytes
from tune_sync.buckets.failures import is_denied, is_transient
from tune_sync.errors import PutConflictError
from tune_sync.layout import INTERNAL_DIR

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
# What the libraries call the time of the last change.
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


class FsspecBucket(Rooted):
    """See `bucket.Bucket`.

    Args:
        make: Makes the filesystem, without caches of listings; called again by `rebuild`.
        root: Path of the root on it.
        makes_dirs: It has directories, which must exist before a file in them.
    """

    def __init__(self, make: Callable[[], Any], root: str, *, makes_dirs: bool = False) -> None:
        super().__init__(root)
        self._make = make
        self._makes_dirs = makes_dirs
        self.rebuild()

    def rebuild(self) -> None:
        """A new client, with the credentials of now."""
        self._fs = self._make()

    def check(self, *, tidies: bool = False) -> None:
        """See `Client.check`."""
        self._check_bucket()
        self.list_dir(INTERNAL_DIR)

    @property
    def capabilities(self) -> Capabilities:
        """See `Bucket.capabilities`."""
        is_s3 = "s3" in getattr(self._fs, "protocol", ())  # others may know no times
        return Capabilities(conditional_put=False, etags=False, times=is_s3)

    def info(self, key: str) -> ObjectInfo | None:
        """See `Bucket.info`."""
        path = self._path(key)
        try:
            found = self._fs.info(path)
        except _ABSENT:
            return None
        return self._object(found) if found["type"] == "file" else None

    def list(self, prefix: str) -> list[ObjectInfo]:
        """See `Bucket.list`."""
        return sorted(self._walk(prefix), key=lambda found: found.key)

    def list_dir(self, prefix: str) -> tuple[builtins.list[ObjectInfo], builtins.list[str]]:
        """See `Bucket.list_dir`."""
        found = self._entries(prefix)
        objects = [self._object(entry) for entry in found if entry["type"] == "file"]
        directories = [self._key(e["name"]) for e in found if e["type"] == "directory"]
        return sorted(objects, key=lambda o: o.key), sorted(directories)

    def get(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """See `Bucket.get`."""
        path = self._path(key)
        if not offset_bytes and length_bytes is None:
            try:
                return bytes(self._fs.cat_file(path))
            except Exception as error:
                self._raise_if_absent(key, error)
                if isinstance(error, _ABSENT):
                    self._check_bucket()
                raise
        found = self.info(key)  # a range beyond the end is an error of some stores
        if found is None:
            self._check_bucket()
            raise FileNotFoundError(key)
        end = found.size_bytes
        if length_bytes is not None:
            end = min(end, offset_bytes + length_bytes)
        if end <= offset_bytes:
            return b""
        return bytes(self._fs.cat_file(path, start=offset_bytes, end=end))

    def put(
        self, key: str, data: bytes | memoryview, *, create_only: bool = False, if_match: str = ""
    ) -> str:
        """See `Bucket.put`."""
        if create_only and self.info(key) is not None:
            raise PutConflictError(f"{key} exists: another writer was first")
        path = self._path(key)
        self._make_parent(path)
        self._fs.pipe_file(path, bytes(data))
        return ""

    def put_stream(
        self, key: str, chunks: Iterable[bytes | memoryview], size_bytes: int | None = None
    ) -> str:
        """See `Bucket.put_stream`."""
        path = self._path(key)
        self._make_parent(path)
        file = self._fs.open(path, "wb", block_size=part_size_bytes(size_bytes))
        try:
            for chunk in chunks:
                file.write(chunk)
            file.close()
        except BaseException:
            self._give_up(file, path)
            raise
        return ""

    def delete(self, keys: Sequence[str]) -> None:
        """See `Bucket.delete`. Never by `rm`, which takes `*` for a pattern, if that can be."""
        for key, path in [(key, self._path(key)) for key in keys]:
            with suppress(*_ABSENT):
                try:
                    self._fs.rm_file(path)
                except NotImplementedError:
                    self._delete_by_rm(path)
                except Exception as error:
                    self._raise_if_absent(key, error)
                    raise

    def _check_bucket(self) -> None:
        """Raise if it is not there: of what is in it, no library says that."""
        if self._makes_dirs:
            return
        bucket = self._root.partition("/")[0]
        try:
            self._fs.info(bucket)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"NoSuchBucket: there is no bucket {bucket}") from error

    def _raise_if_absent(self, key: str, error: Exception) -> None:
        """Some libraries say in words of their own that there is no such file.

        One that could not be asked is never taken for that.
        """
        if isinstance(error, (*_ABSENT, TypeError)) or is_denied(error) or is_transient(error):
            return
        if self.info(key) is None:
            raise FileNotFoundError(key) from error

    def _delete_by_rm(self, path: str) -> None:
        if any(sign in path for sign in "*?["):
            raise OSError(f"this filesystem cannot delete {path}: it takes the name for a pattern")
        self._fs.rm(path)

    def _give_up(self, file: Any, path: str) -> None:
        """Abort the upload where the library can, else remove what came of it."""
        # What goes wrong here must not hide why: and no seal names this object.
        with suppress(Exception):
            if hasattr(file, "buffer") and not self._makes_dirs:
                file.discard()
                file.closed = True  # or it is completed when it is dropped
            else:
                file.close()
                self._fs.rm_file(path)

    def _make_parent(self, path: str) -> None:
        if self._makes_dirs:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        # Not by `find`, which leaves out the directories it could not list.
        for entry in self._entries(prefix):
            if entry["type"] == "file":
                yield self._object(entry)
            else:
                yield from self._walk(self._key(entry["name"]))

    def _entries(self, prefix: str) -> builtins.list[dict[str, Any]]:
        path = self._path(prefix)
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(path, detail=True)
        except _ABSENT:
            self._check_bucket()
            return []
        # The directory itself is among them where other tools put an empty object in its place,
        # or where it is no directory but an object.
        start = f"{prefix}/" if prefix else ""
        keys = [self._key(entry["name"]) for entry in found]
        return [e for e, key in zip(found, keys, strict=True) if key and key.startswith(start)]

    def _object(self, found: dict[str, Any]) -> ObjectInfo:
        times = (found[name] for name in _TIMES if found.get(name))
        return ObjectInfo(self._key(found["name"]), int(found["size"] or 0), _seconds(times))


def _seconds(times: Iterator[Any]) -> float:
    found = next(times, 0.0)
    if isinstance(found, str):
        found = datetime.fromisoformat(found.replace("Z", "+00:00"))
    return float(found.timestamp() if isinstance(found, datetime) else found)
