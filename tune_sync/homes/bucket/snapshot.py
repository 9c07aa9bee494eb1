"""`BucketSnapshot`: what is in an experiment at one moment, by listings instead of questions."""

from __future__ import annotations

import builtins
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Executor

from tune_sync import layout
from tune_sync.buckets.bucket import ObjectInfo
from tune_sync.errors import DamagedError, StoreError
from tune_sync.homes.bucket.listings import check_unlisted
from tune_sync.homes.bucket.records import BucketRecords
from tune_sync.homes.bucket.view import as_directory, as_file
from tune_sync.homes.store import Info
from tune_sync.manifest import Manifest

# How often all is looked at before answers that contradict each other are an error.
TAKES_COUNT = 3
PAUSE_S = 1.0


class BucketSnapshot:
    """See `recorded.Snapshot`. Makes no request.

    Args:
        objects: All that is there.
        manifests: By the key of the checkpoint; or why one cannot be read.
    """

    def __init__(
        self, objects: Iterable[ObjectInfo], manifests: Mapping[str, Manifest | DamagedError]
    ) -> None:
        self._manifests = manifests
        self._entries: dict[str, Info] = {}
        self._inside: dict[str, set[str]] = {"": set()}
        for found in objects:
            self._add(as_file(found))
        for checkpoint, manifest in manifests.items():
            # No object tells of one that has no files. Of any other, none that is there is a loss.
            if isinstance(manifest, Manifest) and not manifest.files:
                self._add(as_directory(checkpoint))

    def info(self, key: str) -> Info | None:
        """See `Store.info`."""
        return self._entries.get(key)

    def list(self, key: str) -> builtins.list[Info]:
        """See `Store.list`."""
        return [self._entries[inner] for inner in sorted(self._inside.get(key, ()))]

    def manifest(self, checkpoint: str) -> Manifest | None:
        """See `Committer.manifest`."""
        found = self._manifests.get(checkpoint)
        if isinstance(found, DamagedError):
            raise found
        return found

    def _add(self, entry: Info) -> None:
        self._entries[entry.key] = entry
        above = layout.parent(entry.key)
        self._inside.setdefault(above, set()).add(entry.key)
        if above and above not in self._entries:
            self._add(as_directory(above))


def take_snapshot(records: BucketRecords, pool: Executor) -> BucketSnapshot:
    """Look at all of an experiment that nobody writes. Its directories are listed side by side.

    A trial goes on from the newest checkpoint that is seen here. So what is named in one place is
    looked for in the other, and all is looked at again where an answer was not what is there.

    Args:
        records: Of the experiment.
        pool: For requests.

    Raises:
        StoreError: Answers still contradict each other.
    """
    for _ in range(TAKES_COUNT - 1):
        try:
            return _take(records, pool)
        except StoreError as error:
            if type(error) is not StoreError:  # that was tried enough
                raise
        time.sleep(PAUSE_S)
    return _take(records, pool)


def _take(records: BucketRecords, pool: Executor) -> BucketSnapshot:
    objects, directories = records.bucket.list_dir("")
    for found in pool.map(records.bucket.list, directories):
        objects = objects + found

    def read(checkpoint: str) -> Manifest | DamagedError | None:
        try:
            return records.manifest(checkpoint)
        except DamagedError as error:
            return error

    keys = records.recorded()
    found_manifests = dict(zip(keys, pool.map(read, keys), strict=True))
    manifests = {key: m for key, m in found_manifests.items() if m is not None}
    there = {found.key for found in objects}
    missing = [next(_missing(m, there), "") for m in manifests.values() if isinstance(m, Manifest)]
    unknown = {_checkpoint_of(key) for key in there} - manifests.keys() - {""}
    unsure = unknown | (found_manifests.keys() - manifests.keys())
    unsure |= {key for key in manifests if layout.manifest_key(key) not in there}
    unlisted = [layout.manifest_key(checkpoint) for checkpoint in sorted(unsure)]
    check_unlisted(records.bucket, [*filter(None, missing), *unlisted])
    return BucketSnapshot(objects, manifests)


def _missing(manifest: Manifest, there: Collection[str]) -> Iterator[str]:
    keys = (f"{manifest.checkpoint}/{file.path}" for file in manifest.files)
    return (key for key in keys if key not in there)


def _checkpoint_of(key: str) -> str:
    """The checkpoint that an object is in, as its name says; "" if it is in none."""
    if layout.below(layout.INTERNAL_DIR, key) is not None:
        return ""
    parts = key.split("/")
    ends = (n for n, part in enumerate(parts[:-1], 1) if layout.is_checkpoint_name(part))
    return "/".join(parts[: next(ends, 0)])
