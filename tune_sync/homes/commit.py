"""The only code that orders the writes of a checkpoint in an experiment directory.

Order of a checkpoint (docs/design/commit-order.md says why):

1. `begin`: an attempt of its own in staging. Nothing else ever writes there.
2. the bytes, by whoever has them; `seal`: bytes durable first, then the seal that lists them.
3. `place`: staging becomes the checkpoint directory, by one rename. Visible at once, whole.
4. `record`: the rename durable first, then the manifest. From here it is published.

A delete (`retire`) goes the other way: the manifest, then out of sight by one rename, then the
bytes. State is replaced whole, after `record` of what it names (see `publisher`).
`recover` completes or undoes what a crash left, for the owner of the lease only.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from tune_sync import layout
from tune_sync.errors import NOT_PUBLISHABLE, DamagedError, NotWholeError
from tune_sync.homes.recorded import Recovery, passed_by, recorded, staged
from tune_sync.homes.records import Records
from tune_sync.homes.replacing import replace_file
from tune_sync.homes.store import Store
from tune_sync.homes.trash import empty_trash, finish_removals, gone_key, move_to_trash, withdraw
from tune_sync.homes.tries import warn_of_parts, whole_tries
from tune_sync.manifest import (
    Manifest,
    Placed,
    Seal,
    Union,
    manifest_of,
    to_json,
    unite,
    warn_of_conflicts,
)

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


class Committer(Records):
    """Orders the writes of one run in one experiment directory. What it reads is in `records`.

    Args:
        store: Rooted at the experiment directory.
        owner: Id of the run, written into manifests.
        fence: Called before anything becomes visible; raises `LeaseLostError` if this run may
            no longer write.
        clock: Seconds since the epoch.
        new_id: Makes a name that was never used before.
    """

    def __init__(
        self, store: Store, owner: str = "", fence: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:  # fmt: skip
        super().__init__(store)
        self._owner = owner
        self._fence = fence
        self._clock = clock
        self._new_id = new_id

    # Staging

    def begin(self, checkpoint: str, attempt: str = "") -> str:
        """Open an attempt at `checkpoint`, by this id or a new one, which is returned."""
        attempt = attempt or self._new_id()
        self.store.make_dir(layout.staged_key(checkpoint, attempt))
        return attempt

    def seal(self, checkpoint: str, seal: Seal, *, is_home: bool = True) -> None:
        """Close an attempt: its bytes are durable, and then its seal, when this returns.

        May be called again with a longer list while it is not placed; with `is_home`, that is here.

        Raises:
            NotWholeError: A listed file is missing or has another length.
        """
        data = layout.staged_key(checkpoint, seal.attempt)
        if self.store.info(data) is None:
            raise NotWholeError(f"attempt {seal.attempt} at {checkpoint} is over; report it again")
        for directory in seal.directories:
            self.store.make_dir(f"{data}/{directory}")
        self._check_lengths(data, seal.files)
        self.store.sync_tree(data)
        self.store.sync(layout.parent(data))  # or a power cut might leave the seal without them
        if not self._has_later(checkpoint, seal):  # this call may come again, late
            self._replace(layout.seal_key(checkpoint, seal.attempt), to_json(seal))
        if is_home:  # or a log might make the directory that it goes to, unsynced
            self.store.make_dir(layout.parent(checkpoint))
        self._sync_above(layout.attempt_key(checkpoint, seal.attempt))

    def discard_attempt(self, checkpoint: str, attempt: str) -> None:
        """Drop one attempt; a late write to it fails, as its directory is gone."""
        self._fence()
        self._discard(layout.attempt_key(checkpoint, attempt))

    # Publishing

    def place(
        self, checkpoint: str, *, strict: bool = False, attempts: Collection[str] | None = None,
        metrics: dict[str, Any] | None = None,
    ) -> Placed:  # fmt: skip
        """Make the sealed parts of `checkpoint` visible as one directory, at once.

        A few renames, as Ray's control loop waits; with several ranks also one for each file of the
        others, a look at each file, an fsync of each directory. Durable only after `record`. May be
        called again after an error, also one after the checkpoint was placed.

        Args:
            checkpoint: Its key.
            strict: See `manifest.unite`.
            attempts: Take these, all of them: those whose writers reported to the driver. A process
                that was given up, and still writes, then cannot get in between. None takes any.
            metrics: For `Manifest.metrics`; None: what the lowest rank has noted.

        Raises:
            NotWholeError: Nothing was sealed, or less than `attempts`.
            RanksDisagreeError: See `manifest.unite`.
            LeaseLostError: Another run took over.
        """
        self._fence()
        union = unite(checkpoint, self._reported(checkpoint, attempts), strict=strict)
        intent = layout.intent_key(checkpoint, union.seals[0].attempt)
        data = layout.staged_key(checkpoint, union.seals[0].attempt)
        if self.store.info(data) is None and self.store.info(intent) is not None:
            placed = manifest_of(checkpoint, self.store.read(intent), intent)
            return Placed(placed, union.conflicts)
        self._gather(checkpoint, union)
        manifest = self._made_of(checkpoint, union, metrics)
        self._write_intent(intent, manifest)
        self._move_into_place(intent, checkpoint)
        return Placed(manifest, union.conflicts)

    def record(self, manifest: Manifest) -> None:
        """Publish a placed checkpoint: durable for good when this returns. May be called twice.

        Raises:
            LeaseLostError: Another run took over; what is there may be its checkpoint by now.
        """
        self._fence()
        checkpoint = manifest.checkpoint
        self.store.sync(checkpoint)  # its entries are durable since `seal`; fails if it is gone
        self._sync_above(checkpoint)
        manifest_key = layout.manifest_key(checkpoint)
        self._replace(manifest_key, to_json(manifest))
        self._sync_above(layout.parent(manifest_key))
        self._discard(f"{layout.STAGING_DIR}/{checkpoint}")

    def retire(self, checkpoint: str) -> None:
        """Delete a checkpoint: gone at once for every reader; its bytes follow."""
        self._set_aside(checkpoint)
        self._drop_intents(checkpoint)
        empty_trash(self.store)

    # Single files

    def begin_file(self) -> str:
        """A key to write one file at, before `commit_file` moves it to its place."""
        self.store.make_dir(layout.INCOMING_DIR)
        return f"{layout.INCOMING_DIR}/{self._new_id()}"

    def commit_file(self, incoming: str, key: str, *, durable: bool) -> None:
        """Put a file in its place, whole: readers see the old one or the new one.

        Args:
            incoming: From `begin_file`.
            key: The place.
            durable: Survives a power cut when this returns. State does; logs need not.
        """
        self._fence()
        self.store.make_dir(layout.parent(key))
        # A call may come again, after its answer was lost: then the file is in its place already.
        found = self.store.info(incoming)
        if found is not None or self.store.info(key) is None:
            try:
                if durable:
                    self.store.sync(incoming)
                self.store.rename(incoming, key)
            except FileNotFoundError:  # unless it came twice at once; an older one is not it
                there = self.store.info(key)
                if found is None or there is None or replace(there, key=incoming) != found:
                    raise
        if durable:
            self._sync_above(key)

    # After a crash

    def recover(
        self, *, strict: bool = False, waits: bool = False, sent_since_s: float | None = None
    ) -> Recovery:
        """Complete what was placed or may have been, drop the rest. For the lease's owner only.

        After the end of another driver: nobody else knows by now what was reported. `strict`: see
        `manifest.unite`. `waits`: nothing is dropped where other ranks' parts may come;
        `sent_since_s`: see `tries.may_come`.
        """
        lacks = partial(self._may_be_whole_later, sent_since_s=sent_since_s) if waits else None
        return self._go_over(partial(self._place_late, strict=strict), lacks)

    def sweep(self) -> Recovery:
        """As `recover`, at the end of this run, which knows what was placed: that alone counts."""
        return self._go_over(lambda checkpoint, after: None)

    # Inside

    def _go_over(
        self, place_late: Callable[[str, str], Manifest | None],
        lacks: Callable[[str, str], bool] | None = None,
    ) -> Recovery:  # fmt: skip
        completed, dropped, kept = [], [], []
        after_of = passed_by(recorded(self.store), keeps_all=self.keeps_all)
        for checkpoint in list(staged(self.store)):
            self._fence()
            after = after_of(checkpoint)
            if lacks is not None and lacks(checkpoint, after):
                kept.append(checkpoint)
                continue
            manifest = self._finish_place(checkpoint) or place_late(checkpoint, after)
            if manifest is not None:
                self.record(manifest)
                completed.append(checkpoint)
            elif self._keeps_unreadable(checkpoint):
                kept.append(checkpoint)
            else:
                dropped.append(checkpoint)
        empty_trash(self.store)
        left = [layout.STAGING_DIR, layout.REPORTED_DIR]
        if kept:  # with the notes of what they are made of
            left = [f"{layout.STAGING_DIR}/{checkpoint}" for checkpoint in dropped]
        for key in (*left, layout.INCOMING_DIR):
            self._fence()  # of another run, which may have begun, nothing goes
            self._discard(key)
        for checkpoint in (*completed, *dropped) if kept else ():
            self._fence()
            self.store.remove(layout.reported_key(checkpoint))
        self._fence()
        self.store.remove_tree(layout.TRASH_DIR)
        forgotten = self._drop_orphaned_manifests()
        return Recovery(tuple(completed), tuple(dropped), forgotten, tuple(kept))

    def _replace(self, key: str, data: bytes) -> None:
        """See `replace_file`; the directories above its parent may be new, and are not synced."""
        self.store.make_dir(layout.parent(key))
        replace_file(self.store, key, data, fresh=self.begin_file())

    def _write_intent(self, intent: str, manifest: Manifest) -> None:
        is_again = self.store.info(intent) is not None  # then what it replaces may have gone
        replace_file(self.store, intent, to_json(manifest), is_durable=is_again)

    def _sync_above(self, key: str) -> None:
        """Make the entry of `key` durable; first those above it, or it could be lost with them."""
        parts = key.split("/")
        for end in range(len(parts)):
            self.store.sync("/".join(parts[:end]))

    def _drop_intents(self, checkpoint: str, keep: str = "") -> None:
        """Forget intents durably, or recovery could take a later checkpoint for theirs.

        Syncs also where there is none: an earlier call may have failed after it removed it.
        """
        for attempt in self.store.list(f"{layout.STAGING_DIR}/{checkpoint}"):
            intent = f"{attempt.key}/{layout.INTENT}"
            if intent != keep:
                self.store.remove(intent)
                with suppress(FileNotFoundError):  # the attempt is being discarded
                    self.store.sync(attempt.key)

    def _gather(self, checkpoint: str, union: Union) -> None:
        """Move the other ranks' files into the first one's staging; again after an error."""
        data = layout.staged_key(checkpoint, union.seals[0].attempt)
        for key in (f"{data}/{directory}" for directory in union.directories):
            if self.store.info(key) is None:
                self.store.make_dir(key)
                self.store.sync(layout.parent(key))  # a file must not be lost with where it goes
        for attempt, path in union.moves:
            source = f"{layout.staged_key(checkpoint, attempt)}/{path}"
            if self.store.info(source) is not None:
                self.store.make_dir(layout.parent(f"{data}/{path}"))
                self.store.rename(source, f"{data}/{path}")
        if len(union.seals) > 1:
            self._check_lengths(data, union.files)
            # The bytes are durable since `seal`; only where they are listed has changed.
            for directory in ("", *union.directories):
                self.store.sync(f"{data}/{directory}".rstrip("/"))

    def _set_aside(self, checkpoint: str) -> None:
        """Take what is at `checkpoint` out of sight; before that its manifest, durably.

        The manifest must not come back: it would stand for whatever is placed next. It becomes the
        mark by which recovery goes on if this is cut off.
        """
        self._fence()  # this run may have been stopped since it looked: it may be another one's
        mark, visible = gone_key(checkpoint), self.store.info(checkpoint) is not None
        was_recorded, is_marked = withdraw(self.store, mark)
        if (visible or was_recorded or is_marked) and self.store.info(layout.parent(mark)):
            self.store.sync(layout.parent(mark))
        if visible:
            move_to_trash(self.store, checkpoint, self._new_id())
        if is_marked:  # not before: a kill would leave half of it, and nothing that says so
            self.store.remove(mark)
            self.store.sync(layout.parent(mark))

    def _discard(self, staged: str) -> None:
        """Remove staging: moved away at once, or late writes could keep refilling it."""
        if self.store.info(staged) is not None:
            try:
                moved = move_to_trash(self.store, staged, self._new_id())
            except FileNotFoundError:  # another recovery, or the run before, was faster
                if self.store.info(staged) is not None:
                    raise
                return
            empty_trash(self.store, only=moved)

    def _place_late(self, checkpoint: str, after: str, strict: bool) -> Manifest | None:
        """Place parts that surely are a whole checkpoint; None if there is nothing of that kind.

        They may have been sent on behind a driver that was then killed. See `passed_by`.
        """
        if layout.by_age(checkpoint) <= layout.by_age(after):
            return None
        seals = self._seals_of_dead(checkpoint)
        tries = whole_tries(seals, partial(self._is_there, checkpoint))
        for attempts in ([seal.attempt for seal in parts] for parts in tries):
            try:
                placed = self.place(checkpoint, strict=strict, attempts=attempts)
            except NOT_PUBLISHABLE as error:
                logger.warning("cannot finish publishing %s: %s", checkpoint, error)
            else:
                warn_of_conflicts(checkpoint, placed.conflicts)
                return placed.manifest
        if not tries and whole_tries(seals):
            logger.warning("cannot finish publishing %s: its files are not there", checkpoint)
        warn_of_parts(checkpoint, seals)
        return None

    def _finish_place(self, checkpoint: str) -> Manifest | None:
        """Finish a `place` that a crash cut off; None if none was under way.

        An intent says that the driver had taken the checkpoint for whole, and so does that it is
        visible. Its bytes were durable before that, and are either still in staging or already in
        their place.
        """
        for intent in self._intents(checkpoint):
            data = f"{layout.parent(intent)}/data"
            where = data if (staged := self.store.info(data) is not None) else checkpoint
            if self.store.info(where) is None:
                continue
            try:
                manifest = manifest_of(checkpoint, self.store.read(intent), intent)
                self._check_lengths(where, manifest.files)
            except (DamagedError, NotWholeError):
                continue
            if staged:
                self._move_into_place(intent, checkpoint)
            return manifest
        union = self._visible_union(checkpoint)
        if union is None:
            return None
        # It may have been recorded, and that not be durable.
        return self._known(checkpoint) or self._made_of(checkpoint, union)

    def _made_of(
        self, checkpoint: str, union: Union, metrics: dict[str, Any] | None = None
    ) -> Manifest:
        return Manifest(
            checkpoint, self._owner, self._clock(), union.files, union.directories,
            union.metrics if metrics is None else metrics,
        )  # fmt: skip

    def _move_into_place(self, intent: str, checkpoint: str) -> None:
        if (is_taken := self._is_taken(checkpoint)) or self._intents(checkpoint) != [intent]:
            # Rare: what is there goes before this comes, so the intent has to survive by itself.
            self.store.sync(intent)
            self._sync_above(intent)
            self._drop_intents(checkpoint, keep=intent)
        if is_taken:
            self._set_aside(checkpoint)
        if self.store.info(layout.parent(checkpoint)) is None:  # somebody has removed it
            self.store.make_dir(layout.parent(checkpoint))
            self._sync_above(checkpoint)
        self.store.rename(f"{layout.parent(intent)}/data", checkpoint)

    def _drop_orphaned_manifests(self) -> tuple[str, ...]:
        """Forget checkpoints that someone removed by hand; returns them."""
        finish_removals(self.store, self._fence)
        for key in map(layout.manifest_key, gone := self._orphaned()):
            self._fence()
            self.store.remove(key)
            self.store.sync(layout.parent(key))
        return tuple(gone)
