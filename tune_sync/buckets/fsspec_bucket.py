"""A bucket through any fsspec filesystem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow.fs as pafs

from tune_sync.buckets.arrow_bucket import ArrowBucket
from tune_sync.buckets.bucket import check_object_key


class FsspecBucket(ArrowBucket):
    """See `bucket.Bucket`.

    Args:
        make: Makes the filesystem, without caches of listings; called again by `rebuild`.
        root: Path of the root on it.
        makes_dirs: See `ArrowBucket`.
    """

    def __init__(self, make: Callable[[], Any], root: str, *, makes_dirs: bool = False) -> None:
        def wrapped() -> pafs.FileSystem:
            self._fsspec = make()
            return pafs.PyFileSystem(pafs.FSSpecHandler(self._fsspec))

        super().__init__(wrapped, root, makes_dirs=makes_dirs)

    def delete(self, keys: Sequence[str]) -> None:
        """See `Bucket.delete`. Not through pyarrow: it calls `rm`, which takes `*` for a pattern."""
        for key in keys:
            path = self._path(check_object_key(key))
            try:
                self._fsspec.rm_file(path)
            except NotImplementedError:
                self._delete_by_rm(path)
            except FileNotFoundError:
                continue

    def _delete_by_rm(self, path: str) -> None:
        if any(sign in path for sign in "*?["):
            raise OSError(f"this filesystem cannot delete {path}: it takes the name for a pattern")
        if self._fsspec.exists(path):
            self._fsspec.rm(path)
