"""A bucket as directories: what Ray and readers of an experiment expect. Read only."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Iterable, Sequence

from tune_sync import layout
from tune_sync.buckets.bucket import Bucket, ObjectInfo
from tune_sync.errors import PathRefusedError
from tune_sync.homes.store import Info

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


class BucketView:
    """Answers as `store.Store` does. A directory is there if an object is below it.

    Args:
        bucket: Rooted at the experiment directory.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def info(self, key: str) -> Info | None:
        """See `Store.info`."""
        found = self._bucket.info(key) if key else None
        if found is not None:
            return as_file(found)
        return self.directory(key)

    def directory(self, key: str) -> Info | None:
        """A directory; None if it is surely not there."""
        objects, directories = self._bucket.list_dir(key)
        return as_directory(key) if objects or directories else None

    def list(self, key: str) -> list[Info]:
        """See `Store.list`."""
        objects, directories = self._bucket.list_dir(key)
        return _sorted([*map(as_file, objects), *map(as_directory, directories)])

    def tree(self, key: str) -> builtins.list[Info]:
        """All below a directory, by one listing; directories come before what is in them."""
        return as_tree(key, self._bucket.list(key))

    def read(self, key: str) -> bytes:
        """All bytes of an object."""
        return self._bucket.get(key)


def as_tree(key: str, objects: Sequence[ObjectInfo], directories: Iterable[str] = ()) -> list[Info]:
    """Objects below a directory, and the directories that they are in, which come before them.

    An object whose name would lead elsewhere, in a directory, is left out.

    Args:
        key: The directory.
        objects: All that is below it.
        directories: Further keys of directories, which may be empty.
    """
    top = key + "/" if key else ""
    inner = set(directories)
    for found in objects:
        above = layout.parent(found.key)
        while len(above) >= len(top) and above not in inner:
            inner.add(above)
            above = layout.parent(above)
    entries = [as_directory(d) for d in inner if d.startswith(top) and d != key]
    return _sorted([*entries, *map(as_file, objects)])


def as_file(found: ObjectInfo) -> Info:
    """An object, as an entry of a directory."""
    return Info(found.key, False, found.size_bytes, found.modified_s)


def _sorted(found: Iterable[Info]) -> list[Info]:
    return sorted((entry for entry in found if _is_below(entry)), key=lambda entry: entry.key)


def _is_below(found: Info) -> bool:
    """Whether its key names it: others put into a bucket what they like."""
    try:
        layout.check_key(found.key)
    except PathRefusedError as error:
        logger.warning("left out of a listing of the bucket: %s", error)
        return False
    return True


def as_directory(key: str) -> Info:
    """A directory; a bucket does not know since when."""
    return Info(key, True, 0, 0.0)
