"""The only code that orders the writes of a checkpoint in a bucket: `commit.Committer` there.

A bucket has no rename, so bytes go to their final keys at once where they can, and the manifest
alone is the commit (docs/design/commit-order-buckets.md says why):

1. `begin`: an attempt of its own, marked in staging. Refused where the checkpoint is published.
2. the bytes, at `staging.final_key`, by whoever has them; a small file whose key is taken waits
   aside, in staging. `seal`: the list of them, with e-tags.
3. `place`: only notes what is to be published; no request, but for several `strict` ranks.
4. `record`: the order (intent) first; one listing is compared with the seals; what waits aside
   goes to its key; what no seal names is removed; the manifest, created only if there is none.

A delete (`retire`) marks itself, then removes the manifest, then the bytes.
`recover` publishes what has an intent and is whole, and removes the rest of what is in staging,
for the owner of the lease only. What has neither a manifest nor staging is not ours: it stays.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from tune_sync import layout
from tune_sync.buckets.bucket import Bucket, ObjectInfo
from tune_sync.errors import NotWholeError, PutConflictError, StoreError
from tune_sync.homes.bucket.aside import aside_key, take_in, waiting_aside
from tune_sync.homes.bucket.leftovers import Tidied, drop_orphaned_manifests, sweep_published, tried
from tune_sync.homes.bucket.put import put_for_delete, put_own
from tune_sync.homes.bucket.records import READS_COUNT, BucketRecords
from tune_sync.homes.bucket.staging import (
    BEGUN,
    OVER,
    RETIRED,
    SEAL,
    Claims,
    Order,
    SealedPart,
    Staged,
    claims,
    intent_key,
    mark_key,
    settle,
    settle_all,
)
from tune_sync.homes.recorded import Recovery, passed_by
from tune_sync.manifest import (
    FORMAT_VERSION,
    FileEntry,
    Manifest,
    Placed,
    Seal,
    to_json,
    unite,
    warn_of_conflicts,
)


class BucketCommitter(BucketRecords):
    """Orders the writes of one run in one experiment's prefix. See `commit.Committer`.

    Methods may be called from any thread. There is no `begin_file`: an object is put whole.

    Args:
        bucket: Rooted at the experiment.
        owner: Id of the run, written into manifests.
        fence: Called before anything becomes visible or goes; raises `LeaseLostError` if this
            run may no longer write. May make a request.
        clock: Seconds since the epoch.
        new_id: Makes a name that was never used before.
    """

    def __init__(
        self, bucket: Bucket, owner: str = "", fence: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:  # fmt: skip
        super().__init__(bucket)
        self._owner = owner
        self._fence = fence
        self._clock = clock
        self._new_id = new_id
        self._orders: dict[str, Order] = {}  # placed and not recorded, by checkpoint
        self._noted: dict[str, Order] = {}  # those of them that are in the bucket
        self._orders_lock = threading.Lock()
        self._noting = threading.Lock()
        self._tidied = Tidied()

    def begin(self, checkpoint: str, may_put: Callable[[], None] = lambda: None) -> str:
        """Open a new attempt at `checkpoint`; returns its id.

        `may_put` is called before the first put: what the caller looks for may take till then.

        Raises:
            ImmutableError: The checkpoint is published: its bytes lie where these would go.
        """
        self._refuse_published(checkpoint)
        may_put()
        attempt = self._new_id()
        body = {"format_version": FORMAT_VERSION, "owner": self._owner, "begun_s": self._clock()}
        self.bucket.put(mark_key(checkpoint, attempt, BEGUN), json.dumps(body).encode())
        return attempt

    def put_file(self, checkpoint: str, attempt: str, path: str, data: bytes | memoryview) -> str:
        """Put a small file of an attempt, whole; returns its e-tag, or "".

        Where the store can, what another rank or attempt put is left alone, and this one waits
        aside, without an e-tag. `record` looks which of them counts.

        Raises:
            NotWholeError: The attempt is over, and something is there.
        """
        key, aside = layout.check_key(f"{checkpoint}/{path}"), aside_key(checkpoint, attempt, path)
        check = partial(self.check_attempt, checkpoint, attempt)
        return put_own(self.bucket, key, aside, data, check)

    def seal(
        self, checkpoint: str, seal: Seal, etags: Mapping[str, str] | None = None,
        may_put: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Close an attempt whose objects are all put; durable on return.

        May be called again with a longer list while the checkpoint is not recorded.

        Args:
            checkpoint: Its key.
            seal: What was put.
            etags: Path -> what `Bucket.put` returned, where it did.
            may_put: See `begin`.

        Raises:
            NotWholeError: The attempt is over.
        """
        self.check_attempt(checkpoint, seal.attempt)
        may_put()
        part = SealedPart(seal, etags or {})
        self.bucket.put(mark_key(checkpoint, seal.attempt, SEAL), part.to_json())

    def attempts(self, trial: str) -> list[tuple[str, str]]:
        """What a trial has in staging and did not place: `(checkpoint, attempt)`."""
        with self._orders_lock:
            placed = set(self._orders)
        return [
            (checkpoint, attempt)
            for checkpoint, staged in self._staged(trial).items()
            if checkpoint not in placed and not staged.has_intent
            for attempt in staged.live()
        ]

    def discard_attempt(self, checkpoint: str, attempt: str) -> None:
        """Give up one attempt: it cannot be sealed any more.

        Its objects stay until a later one is recorded, or until `recover`: others may write there.
        """
        self._fence()
        begun = mark_key(checkpoint, attempt, BEGUN)
        if self.bucket.info(begun) is not None:
            # Something has to stay, or nothing would tell that objects are left.
            self.bucket.put(mark_key(checkpoint, attempt, OVER), b"{}")
            self.bucket.delete([begun, mark_key(checkpoint, attempt, SEAL)])

    # Publishing

    def place(
        self, checkpoint: str, *, strict: bool = False, attempts: Collection[str] | None = None,
        metrics: dict[str, Any] | None = None,
    ) -> Placed:  # fmt: skip
        """Note what `record` is to publish; nothing is durable. Makes no request, see above.

        Args:
            checkpoint: Its key. The manifest has no files yet: `record` finds, and logs, conflicts.
            strict: See `manifest.unite`.
            attempts: Take these, all of them: those whose writers reported to the driver.
            metrics: For `Manifest.metrics`.

        Raises:
            NotWholeError: `attempts` is empty.
            RanksDisagreeError: See `manifest.unite`.
        """
        if attempts is not None and not attempts:
            raise NotWholeError(f"checkpoint {checkpoint} has no complete part; nothing to publish")
        if strict and attempts is not None and len(attempts) > 1:
            self._refuse_conflicts(checkpoint, attempts)
        manifest = Manifest(checkpoint, self._owner, self._clock(), (), (), metrics)
        ids = None if attempts is None else tuple(sorted(attempts))
        with self._orders_lock:
            if (known := self._orders.get(checkpoint)) and ids and known.attempts == ids:
                return Placed(known.manifest, ())  # asked again: it may be recorded by now
            self._orders[checkpoint] = Order(manifest, strict, ids)
        return Placed(manifest, ())

    def record(self, manifest: Manifest) -> None:
        """Publish a placed checkpoint: durable for good when this returns. May be called twice.

        Raises:
            NotWholeError: An object is missing, or not what its writer put; or a seal is.
            RanksDisagreeError: See `manifest.unite`.
            ImmutableError: A checkpoint of that name is published.
            LeaseLostError: Another run took over.
        """
        checkpoint = manifest.checkpoint
        with self._orders_lock:
            order = self._orders.get(checkpoint) or Order(manifest)
        if order.manifest != manifest:
            raise NotWholeError(f"{checkpoint} was placed again since; that is what counts")
        self._fence()
        self._note_placed(checkpoint, order)
        staged = self._staged(checkpoint).get(checkpoint, Staged())
        if not self._is_recorded(manifest):
            self._publish(order, staged)
        if not self._tidied(self.bucket, [*staged.keys, intent_key(checkpoint)]):
            return
        with self._orders_lock:  # not before: who asks again until then gets this one
            self._orders = {key: o for key, o in self._orders.items() if o != order}

    def retire(self, checkpoint: str) -> None:
        """Delete a checkpoint: published no more, and then its objects. May be called twice."""
        self._fence()
        with self._orders_lock:
            self._orders.pop(checkpoint, None)
        # If this is cut off after the manifest has gone, recovery finds the rest by this mark.
        put_for_delete(self.bucket, mark_key(checkpoint, self._new_id(), RETIRED))
        self._fence()  # that may have been tried for minutes
        self.bucket.delete([layout.manifest_key(checkpoint)])
        if not self._drop(checkpoint):
            raise StoreError(f"{checkpoint} is not all deleted, or is written again; try again")

    # After a crash

    def recover(
        self, *, strict: bool = False, waits: bool = False, sent_since_s: float | None = None
    ) -> Recovery:
        """Publish what was placed or may have been, drop the rest. For the owner of the lease only.

        After the end of another driver: nobody else knows by now what was placed. `strict`: see
        `manifest.unite`. `waits`, `sent_since_s`: see `commit.Committer.recover`.
        """
        lacks = partial(self._may_be_whole_later, sent_since_s=sent_since_s) if waits else None
        return self._go_over(partial(self._finish_unplaced, strict=strict), lacks)

    def sweep(self) -> Recovery:
        """As `recover`, at the end of this run, which knows what was placed: that alone counts.

        Raises:
            StoreError: What was placed could not be published. It stays.
        """
        return self._go_over(self._finish_placed)

    # Inside

    def _go_over(
        self, finish_unplaced: Callable[[str, Staged, str], bool],
        lacks: Callable[[str, Staged, str], bool] | None = None,
    ) -> Recovery:  # fmt: skip
        completed, dropped, kept = [], [], []
        recorded = set(self.recorded())
        after_of = passed_by(recorded, keeps_all=self.keeps_all)
        for checkpoint, staged in self._all_staged().items():
            self._fence()
            after = after_of(checkpoint)
            self._unread.discard(checkpoint)
            if self._sweep_published(checkpoint, staged, recorded):
                continue
            if lacks is not None and lacks(checkpoint, staged, after):
                kept.append(checkpoint)
            elif self._finish(checkpoint, staged) or finish_unplaced(checkpoint, staged, after):
                completed.append(checkpoint)
                self._delete_staged(checkpoint)
            elif self._keeps_unreadable(checkpoint, staged) or not self._drop(checkpoint):
                kept.append(checkpoint)
            elif not staged.retired():
                dropped.append(checkpoint)
        forgotten = drop_orphaned_manifests(self, self._fence)
        return Recovery(tuple(completed), tuple(dropped), forgotten, tuple(kept))

    def _note_placed(self, checkpoint: str, order: Order) -> None:
        """Put the intents of all that was placed: a driver may be killed before it is recorded.

        Later ones may be recorded first. Google refuses a second put within a second.
        """
        with self._noting:
            with self._orders_lock:
                placed = {checkpoint: order} | self._orders
            noted = {key: o for key, o in self._noted.items() if placed.get(key) == o}
            new = {key: o for key, o in placed.items() if key not in noted}
            self._unmark(new)
            with ThreadPoolExecutor(READS_COUNT) as pool:
                list(pool.map(self._note, new, new.values()))
            self._noted = noted | new

    def _unmark(self, new: Collection[str]) -> None:
        # A delete of an earlier checkpoint of that name, cut off: recovery must not go on with it.
        staged = self._staged("" if len(new) > 1 else next(iter(new))) if new else {}
        retired = [(c, a) for c in new for a in staged.get(c, Staged()).retired()]
        self.bucket.delete([mark_key(c, attempt, RETIRED) for c, attempt in retired])

    def _note(self, checkpoint: str, order: Order) -> None:
        self.bucket.put(intent_key(checkpoint), order.to_json())

    def _publish(self, order: Order, staged: Staged) -> None:
        checkpoint = order.manifest.checkpoint
        sealed = staged.sealed()
        taken = sealed if order.attempts is None else order.attempts
        self._check_reported(checkpoint, taken, staged)
        parts = self._parts(checkpoint, taken)
        union = unite(checkpoint, [part.seal for part in parts], strict=order.strict)
        claimed = claims(union, parts)
        found = self._objects(checkpoint, claimed)
        waiting = self._waiting(checkpoint, union, claimed, found, staged.keys)
        files = settle_all(checkpoint, claimed, found, waiting, self._settle_one)
        # Not before it is known to be whole: another attempt's files may be overwritten.
        is_only = set(sealed) <= set(taken)
        self._fence()  # all that has taken long, and so has what follows
        take_in(self.bucket, checkpoint, waiting, claimed, is_only=is_only)
        metrics = union.metrics if order.manifest.metrics is None else order.manifest.metrics
        manifest = replace(
            order.manifest, files=files, directories=union.directories, metrics=metrics
        )
        named = {file.path for file in files}
        self._fence()
        self.bucket.delete([o.key for path, o in found.items() if path not in named])
        self._fence()
        self._put_manifest(manifest)
        warn_of_conflicts(checkpoint, union.conflicts, set(union.files) - set(files))

    def _waiting(self, *known: Any) -> dict[str, str]:
        return waiting_aside(*known)

    def _settle_one(self, there: ObjectInfo, claimed: Claims) -> FileEntry:
        return settle(there, claimed, partial(self._digest, there))

    def _put_manifest(self, manifest: Manifest) -> None:
        key = layout.manifest_key(manifest.checkpoint)
        try:
            self.bucket.put(key, to_json(manifest), create_only=True)
        except PutConflictError:
            # Whose it is tells whether only the answer to an earlier try was lost.
            if not self._is_recorded(manifest):
                raise

    def _delete_staged(self, checkpoint: str) -> None:
        staged = self.bucket.list(f"{layout.STAGING_DIR}/{checkpoint}")
        self._fence()  # what comes before a delete may take long
        self.bucket.delete([o.key for o in staged])

    def _drop(self, checkpoint: str) -> bool:
        """Remove what is not published, its objects first. Whether it has gone: else it is told."""
        objects = self._objects(checkpoint).values()
        self._fence()
        self.bucket.delete([o.key for o in objects])
        if self.bucket.list(checkpoint):
            self._tell_not_gone(checkpoint)
            return False
        self._delete_staged(checkpoint)
        return True

    def _finish(self, checkpoint: str, staged: Staged) -> bool:
        """Do what a `record` that was cut off would have done; whether it could be done."""
        if not staged.has_intent or staged.retired():
            return False
        return tried(checkpoint, lambda: self._publish(self._order(checkpoint), staged))

    def _finish_placed(self, checkpoint: str, staged: Staged, after: str) -> bool:
        """As `_finish`, where the intent is only known here: the bucket may have refused it."""
        with self._orders_lock:
            order = self._orders.get(checkpoint)
        if order is None or not tried(checkpoint, lambda: self._publish(order, staged)):
            return False
        with self._orders_lock:
            self._orders.pop(checkpoint, None)
        return True

    def _finish_unplaced(self, checkpoint: str, staged: Staged, after: str, strict: bool) -> bool:
        """Publish parts that surely are a whole checkpoint; whether that could be done.

        A driver may have taken it, and been killed before that was in the bucket. See `passed_by`.
        """
        if staged.retired() or layout.by_age(checkpoint) <= layout.by_age(after):
            return False
        tries = self._whole_tries(checkpoint, staged)
        manifest = Manifest(checkpoint, self._owner, self._clock(), (), ())
        orders = [Order(manifest, strict, attempts) for attempts in tries]
        return any(tried(checkpoint, partial(self._publish, o, staged)) for o in orders)

    def _sweep_published(self, checkpoint: str, staged: Staged, recorded: Collection[str]) -> bool:
        return sweep_published(self, checkpoint, staged.keys, self._fence, recorded)
