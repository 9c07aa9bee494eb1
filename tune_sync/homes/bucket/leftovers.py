"""What recovery does about published checkpoints: late writers' objects go, and orphaned manifests.

A manifest that cannot be read may still be put right, as what it lists is there. So nothing of its
checkpoint is touched, and its staging stays, which tells the next recovery to look again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from tune_sync import layout
from tune_sync.buckets.bucket import Bucket
from tune_sync.errors import NOT_PUBLISHABLE, ConfigError, DamagedError, StoreError
from tune_sync.homes.bucket.listings import check_unlisted
from tune_sync.homes.bucket.records import READS_COUNT, BucketRecords, tell_listed
from tune_sync.manifest import Manifest

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


class Tidied:
    """Removes the staging of what is published. Methods may be called from any thread.

    What cannot be removed stays for a recovery: it takes room, and nothing is wrong with what is
    published. That is told once.
    """

    def __init__(self) -> None:
        self._is_told = False

    def __call__(self, bucket: Bucket, keys: Sequence[str]) -> bool:
        """Remove it, or leave it; returns whether it is gone."""
        try:
            bucket.delete(keys)
            return True
        except (OSError, StoreError, ConfigError) as error:
            level = logging.DEBUG if self._is_told else logging.WARNING
            self._is_told = True
            logger.log(level, "what is published is left in staging too, for a restore or "
                       "cleanup to remove: %s", error)  # fmt: skip
            return False


def tried(checkpoint: str, act: Callable[[], None]) -> bool:
    """Whether `act` could publish it. What the store answers of itself is raised."""
    try:
        act()
    except NOT_PUBLISHABLE as error:
        logger.warning("cannot finish publishing %s: %s", checkpoint, error)
        return False
    return True


def sweep_published(
    records: BucketRecords, checkpoint: str, staged: Sequence[str], fence: Callable[[], None],
    recorded: Collection[str],
) -> bool:  # fmt: skip
    """Remove what late writers left beside a published checkpoint, then its staging.

    Args:
        records: Of the experiment.
        checkpoint: Its key.
        staged: Keys of all that is in its staging.
        fence: Raises if this run may no longer write.
        recorded: What a listing showed to be published: one answer alone does not take that back.

    Returns:
        Whether it is published: else nothing is removed.
    """
    try:
        manifest = records.manifest(checkpoint)
    except DamagedError as error:
        _tell_damaged(checkpoint, error)
        return True
    if manifest is None:
        if checkpoint in recorded:
            tell_listed(checkpoint)
        return checkpoint in recorded
    named = {f"{checkpoint}/{file.path}" for file in manifest.files}
    found = records.bucket.list(checkpoint)
    fence()
    records.bucket.delete([o.key for o in found if o.key not in named])
    fence()
    records.bucket.delete(staged)
    return True


def drop_orphaned_manifests(records: BucketRecords, fence: Callable[[], None]) -> tuple[str, ...]:
    """Forget checkpoints that someone removed by hand, so that their names can be used.

    Args:
        records: Of the experiment.
        fence: Raises if this run may no longer write.

    Raises:
        StoreError: Files of one are there, though they were not listed; none is forgotten.
    """
    orphaned = [m for m in _orphaned(records) if m.files]  # else there is nothing to be there
    check_unlisted(records.bucket, [f"{m.checkpoint}/{m.files[0].path}" for m in orphaned])
    for manifest in orphaned:
        fence()
        records.bucket.delete([layout.manifest_key(manifest.checkpoint)])
    return tuple(manifest.checkpoint for manifest in orphaned)


def _orphaned(records: BucketRecords) -> Iterator[Manifest]:
    """Manifests of checkpoints of which no object is there."""
    recorded = records.recorded()
    trials = {layout.parent(key) for key in recorded}
    with ThreadPoolExecutor(READS_COUNT) as pool:
        there = {d for _, found in pool.map(records.bucket.list_dir, trials) for d in found}
    for checkpoint in (key for key in recorded if key not in there):
        try:
            manifest = records.manifest(checkpoint)
        except DamagedError as error:
            _tell_damaged(checkpoint, error)
            continue
        if manifest is not None:
            yield manifest


def _tell_damaged(checkpoint: str, error: DamagedError) -> None:
    logger.warning(
        "%s; %s does not count until a whole copy of that file is put back. If it is not wanted "
        "any more, remove that file",
        error, checkpoint,
    )  # fmt: skip
