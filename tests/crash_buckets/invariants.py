"""What has to hold in a bucket after any crash, stated once.

Right after a crash (`check_at_once`), and after recovery (`check_recovered`):

* MANIFEST   A checkpoint with a manifest holds every file that it lists, with its digest, and is
             one of those that were handed over to be placed.
* STATE      The state can be read, is no older than the last one reported as written, and names
             only checkpoints that have a manifest.

After recovery also:

* RECORDED   What `record` returned for is there and published, unless it is being retired.
* ACKNOWLEDGED  What a trial of one process was told of as taken is published, unless it is being
             retired, with or without an intent.
* INTENDED   What had an intent when it crashed, and was not being retired, is published.
* RETIRED    What `retire` returned for does not come back.
* CLEAN      Nothing is in staging, no object of a checkpoint is without a manifest that lists it,
             no manifest lacks its checkpoint, and recovering once more changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection

import xxhash

from tests.crash.invariants import ViolatedError
from tests.crash.ledger import Contents, Ledger
from tests.crash_buckets.run import STATE_KEY
from tests.manifests import manifests_of
from tune_sync import layout
from tune_sync.errors import TuneSyncError
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.homes.bucket.staging import group
from tune_sync.testing.memory_bucket import MemoryBucket


def check_at_once(bucket: MemoryBucket, ledger: Ledger) -> None:
    """MANIFEST and STATE: hold at every instant."""
    published = _published(bucket, ledger)
    for checkpoint, contents in published.items():
        handed_over = ledger.wholes.get(checkpoint, [])
        _demand("MANIFEST", contents in handed_over, f"{checkpoint}: {contents}")
    _check_state(bucket, ledger, published)


def check_recovered(bucket: MemoryBucket, ledger: Ledger, intended: Collection[str]) -> None:
    """All of them. `intended`: see `intents`."""
    check_at_once(bucket, ledger)
    published = _published(bucket, ledger)
    for checkpoint, whole in ledger.recorded.items():
        if checkpoint not in ledger.retiring:
            _demand("RECORDED", published.get(checkpoint) == whole, checkpoint)
    for checkpoint in intended:
        if checkpoint not in ledger.retiring:
            _demand("INTENDED", checkpoint in published, checkpoint)
    for checkpoint in ledger.acknowledged:
        _demand("ACKNOWLEDGED", checkpoint in published, checkpoint)
    for checkpoint in ledger.retired:
        left = bucket.list(checkpoint) or bucket.info(layout.manifest_key(checkpoint))
        _demand("RETIRED", not left, f"{checkpoint}: {left}")
    _check_clean(bucket, published)


def check_stable(bucket: MemoryBucket) -> None:
    """CLEAN: recovering once more changes nothing."""
    before = dict(bucket.objects)
    recovery = BucketCommitter(bucket).recover()
    _demand("CLEAN", not recovery.completed and not recovery.dropped, repr(recovery))
    _demand("CLEAN", bucket.objects == before, "a second recovery changed the bucket")


def intents(bucket: MemoryBucket) -> set[str]:
    """Checkpoints that `record` had begun to publish."""
    staged = group(o.key for o in bucket.list(layout.STAGING_DIR))
    return {checkpoint for checkpoint, found in staged.items() if found.has_intent}


def _published(bucket: MemoryBucket, ledger: Ledger) -> dict[str, Contents]:
    """What manifests list, read, with digests checked; not what was removed by hand."""
    try:
        manifests = manifests_of(BucketCommitter(bucket))
    except TuneSyncError as error:
        raise ViolatedError(f"MANIFEST: {error}") from error
    found: dict[str, Contents] = {}
    for manifest in manifests:
        if manifest.checkpoint in ledger.retired and not bucket.list(manifest.checkpoint):
            continue
        contents: Contents = dict.fromkeys(manifest.directories)
        for file in manifest.files:
            data = bucket.objects.get(f"{manifest.checkpoint}/{file.path}")
            _demand("MANIFEST", data is not None, f"{manifest.checkpoint} lacks {file.path}")
            same = data is not None and xxhash.xxh3_128_hexdigest(data) == file.digest
            _demand("MANIFEST", same, f"{manifest.checkpoint}/{file.path}: {data!r}")
            contents[file.path] = data
        found[manifest.checkpoint] = contents
    return found


def _check_clean(bucket: MemoryBucket, published: dict[str, Contents]) -> None:
    for key in bucket.objects:
        place = layout.classify(key) if not key.startswith(layout.INTERNAL_DIR) else None
        if place is not None and place.kind is layout.Kind.CHECKPOINT:
            listed = place.inner in published.get(place.checkpoint, {})
            _demand("CLEAN", listed, f"{key} belongs to nothing")
    left = [o.key for o in bucket.list(layout.STAGING_DIR)]
    _demand("CLEAN", not left, repr(left))


def _check_state(bucket: MemoryBucket, ledger: Ledger, published: Collection[str]) -> None:
    raw = bucket.objects.get(STATE_KEY)
    if raw is None:
        _demand("STATE", ledger.states_done == 0, "the state is lost")
        return
    state = json.loads(raw)
    _demand("STATE", state["number"] >= ledger.states_done - 1, "an older state came back")
    for checkpoint in state["checkpoints"]:
        _demand("STATE", checkpoint in published, f"names {checkpoint}, which is not published")


def _demand(name: str, holds: bool, what: str) -> None:
    if not holds:
        raise ViolatedError(f"{name}: {what}")
