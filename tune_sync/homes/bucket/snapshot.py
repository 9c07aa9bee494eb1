"""`BucketSnapshot`: what is in an experiment at one moment, by listings instead of questions."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor

from tune_sync import layout
from tune_sync.buckets.bucket import ObjectInfo
from tune_sync.errors import DamagedError
from tune_sync.homes.bucket.records import BucketRecords
from tune_sync.homes.bucket.view import as_directory, as_file
from tune_sync.homes.store import Info
from tune_sync.manifest import Manifest


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
    """Look at all of an experiment. The directories in it are listed side by side.

    Args:
        records: Of the experiment.
        pool: For requests.
    """
    objects, directories = records.bucket.list_dir("")
    for found in pool.map(records.bucket.list, directories):
        objects = objects + found

    def read(checkpoint: str) -> Manifest | DamagedError | None:
        try:
            return records.manifest(checkpoint)
        except DamagedError as error:
            return error

    keys = records.recorded()
    found_manifests = zip(keys, pool.map(read, keys), strict=True)
    return BucketSnapshot(objects, {key: m for key, m in found_manifests if m is not None})
