"""Wrong orders of requests, kept to show that the crash loop sees them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from tests.crash_buckets.run import Run
from tune_sync import layout
from tune_sync.homes.bucket.aside import take_in
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.homes.bucket.staging import (
    OVER,
    Claims,
    Order,
    Staged,
    claims,
    mark_key,
)
from tune_sync.manifest import FileEntry, Manifest, Seal, Union, unite


class ManifestBeforeCheck(BucketCommitter):
    """Publishes what the seals say, and looks afterwards."""

    def _publish(self, order: Order, staged: Staged) -> None:
        parts = self._parts(order.manifest.checkpoint, staged.sealed())
        union = unite("", [part.seal for part in parts], strict=False)
        self._put_manifest(
            replace(order.manifest, files=union.files, directories=union.directories)
        )
        super()._publish(order, staged)


class ManifestAtPlace(BucketCommitter):
    """A seal publishes at once what it lists."""

    def seal(self, checkpoint: str, seal: Seal, etags: Any = None) -> None:
        super().seal(checkpoint, seal, etags)
        self._put_manifest(Manifest(checkpoint, self._owner, 0.0, seal.files, seal.directories))


class ObjectsBeforeManifest(BucketCommitter):
    """Deletes the objects of a checkpoint that is still published."""

    def retire(self, checkpoint: str) -> None:
        self.bucket.delete([o.key for o in self.bucket.list(checkpoint)])
        super().retire(checkpoint)


class RetiresWithoutMark(BucketCommitter):
    """Leaves nothing that tells recovery of objects without a manifest."""

    def retire(self, checkpoint: str) -> None:
        self.bucket.delete([layout.manifest_key(checkpoint)])
        self._drop(checkpoint)


class StagingFirst(BucketCommitter):
    """Removes the marks before the objects that they tell of."""

    def _drop(self, checkpoint: str) -> None:
        self._delete_staged(checkpoint)
        super()._drop(checkpoint)


class SealsGoFirst(BucketCommitter):
    """Cleans staging before the manifest is there."""

    def _put_manifest(self, manifest: Manifest) -> None:
        self._delete_staged(manifest.checkpoint)
        super()._put_manifest(manifest)


class LeavesWhatNoSealNames(BucketCommitter):
    """Publishes beside the objects of earlier attempts."""

    def _publish(self, order: Order, staged: Staged) -> None:
        kept = dict(self.bucket.objects)  # type: ignore[attr-defined]
        super()._publish(order, staged)
        for key, data in kept.items():
            if key.startswith(order.manifest.checkpoint) and self.bucket.info(key) is None:
                self.bucket.put(key, data)


class BelievesTheLowestRank(BucketCommitter):
    """Lists the first rank's digests, whoever's bytes are there."""

    def _waiting(self, *known: Any) -> dict[str, str]:
        """Leave aside what waits there."""
        return {}

    def _settle_one(self, there: Any, claimed: Claims) -> FileEntry:
        return claimed[0][0]


class TakesInAfterwards(BelievesTheLowestRank):
    """Puts the lowest rank's bytes at their keys when the manifest lists them already."""

    def _publish(self, order: Order, staged: Staged) -> None:
        super()._publish(order, staged)
        checkpoint = order.manifest.checkpoint
        parts = self._parts(checkpoint, staged.sealed())
        union = unite(checkpoint, [part.seal for part in parts], strict=False)
        claimed, found = claims(union, parts), self._objects(checkpoint)
        waiting = BucketCommitter._waiting(self, checkpoint, union, claimed, found, staged.keys)
        take_in(self.bucket, checkpoint, waiting, claimed, is_only=True)


class TakesInFirst(BucketCommitter):
    """Puts what waits at its keys before it is known whether the rest is there."""

    def _waiting(self, checkpoint: str, union: Union, claimed: Any, *known: Any) -> dict[str, str]:
        waiting = super()._waiting(checkpoint, union, claimed, *known)
        take_in(self.bucket, checkpoint, waiting, claimed, is_only=True)
        return waiting


class LeavesAside(BucketCommitter):
    """Lists what is there, though the lowest rank's bytes wait aside."""

    def _waiting(self, *known: Any) -> dict[str, str]:
        return {}


class DropsAllStaged(BucketCommitter):
    """Recovery takes all that is staged for rubbish, also what is published."""

    def _sweep_published(self, checkpoint: str, staged: Staged, recorded: Collection[str]) -> bool:
        self.bucket.delete([layout.manifest_key(checkpoint)])
        self._drop(checkpoint)
        return True


class ForgetsIntents(BucketCommitter):
    """Recovery does not go on with what `record` had begun."""

    def _finish(self, checkpoint: str, staged: Staged) -> bool:
        return False


class WaitsForTheDriver(BucketCommitter):
    """Recovery needs an intent, also for what a single writer has sealed as complete."""

    def _finish_unplaced(self, checkpoint: str, staged: Staged, after: str, strict: bool) -> bool:
        return False


class TakesAnyCompleteSeal(BucketCommitter):
    """Recovery publishes what was sealed as complete, also under a number that is in the past."""

    def _finish_unplaced(self, checkpoint: str, staged: Staged, after: str, strict: bool) -> bool:
        return super()._finish_unplaced(checkpoint, staged, "", strict)


class KeepsMarksOfDeletes(BucketCommitter):
    """Publishes again under a name whose delete was cut off, and leaves the mark of that."""

    def _unmark(self, new: Collection[str]) -> None:
        pass


class GivesUpWithoutTrace(BucketCommitter):
    """Removes the marks of an attempt whose objects stay."""

    def discard_attempt(self, checkpoint: str, attempt: str) -> None:
        super().discard_attempt(checkpoint, attempt)
        self.bucket.delete([mark_key(checkpoint, attempt, OVER)])


class SweepsWhatIsPlaced(BucketCommitter):
    """At its end drops what it had placed and not recorded."""

    def _finish_placed(self, checkpoint: str, staged: Staged, after: str) -> bool:
        return False


class StateBeforeRecord(Run):
    """Names a checkpoint in the state before it is published."""

    def publish(self, checkpoint: str, contents: dict[str, bytes | None]) -> None:
        self.place(checkpoint, contents, [self.stage(checkpoint, contents)])
        named = self.ledger.states[-1] if self.ledger.states else ()
        self.state(*named, checkpoint)
        self.record(checkpoint)


class RetireBeforeState(Run):
    """Deletes a checkpoint that the state still names."""

    def state(self, *names: str) -> None:
        for gone in set(self.ledger.states[-1] if self.ledger.states else ()) - set(names):
            self.retire(gone)
        super().state(*names)
