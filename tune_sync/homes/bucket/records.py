"""What a bucket holds of an experiment's checkpoints: manifests, staging, objects. Read only."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

import xxhash

from tune_sync import layout
from tune_sync.buckets.bucket import Bucket, ObjectInfo
from tune_sync.homes.bucket.staging import SEAL, Part, Staged, group, mark_key, part_from_json
from tune_sync.homes.recorded import newest_of
from tune_sync.manifest import Manifest, manifest_from_json

# Small objects that are read at once: each takes a round trip, and little else.
READS_COUNT = 16
# How much of an object is read at a time where only its bytes tell whose it is.
DIGEST_STEP_BYTES = 16 << 20


class BucketRecords:
    """Methods may be called from any thread. Nothing is kept between two calls.

    Args:
        bucket: Rooted at the experiment.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def manifest(self, checkpoint: str) -> Manifest | None:
        """The manifest of a published checkpoint, or None if it is not published.

        Raises:
            DamagedError: There is one, and it cannot be read.
        """
        key = layout.manifest_key(checkpoint)
        try:
            return manifest_from_json(self.bucket.get(key), key)
        except FileNotFoundError:
            return None

    def published(self) -> Iterator[Manifest]:
        """All published checkpoints, in the order of their keys."""
        with ThreadPoolExecutor(READS_COUNT) as pool:
            for manifest in pool.map(self.manifest, self.recorded()):
                if manifest is not None:
                    yield manifest

    def recorded(self) -> list[str]:
        """Keys of checkpoints that have a manifest, in order, by one listing."""
        start = layout.MANIFESTS_DIR + "/"
        keys = [o.key for o in self.bucket.list(layout.MANIFESTS_DIR)]
        return [k.removeprefix(start).removesuffix(".json") for k in keys if k.endswith(".json")]

    # For those who order writes

    def _newest(self) -> dict[str, str]:
        """Trial directory -> the latest of its published checkpoints."""
        return newest_of(self.recorded())

    def _staged(self, below: str) -> dict[str, Staged]:
        prefix = f"{layout.STAGING_DIR}/{below}".rstrip("/")
        return group(o.key for o in self.bucket.list(prefix))

    def _parts(self, checkpoint: str, attempts: Collection[str]) -> list[Part]:
        keys = [mark_key(checkpoint, attempt, SEAL) for attempt in attempts]
        with ThreadPoolExecutor(READS_COUNT) as pool:
            return list(pool.map(lambda key: part_from_json(self.bucket.get(key), key), keys))

    def _is_untouched(self, checkpoint: str, part: Part, staged: Staged) -> bool:
        """Whether no other attempt wrote over a part's files, where no e-tags will tell."""
        if len(staged.marks) == 1 or all(file.path in part.etags for file in part.seal.files):
            return True
        there = self._objects(checkpoint)
        return all(
            file.path in there and self._digest(there[file.path]) == file.digest
            for file in part.seal.files
        )

    def _objects(self, checkpoint: str) -> dict[str, ObjectInfo]:
        """Path inside a checkpoint -> what is there."""
        return {o.key.removeprefix(checkpoint + "/"): o for o in self.bucket.list(checkpoint)}

    def _digest(self, there: ObjectInfo) -> str:
        digest = xxhash.xxh3_128()
        for start in range(0, there.size_bytes, DIGEST_STEP_BYTES):
            digest.update(self.bucket.get(there.key, start, DIGEST_STEP_BYTES))
        return digest.hexdigest()
