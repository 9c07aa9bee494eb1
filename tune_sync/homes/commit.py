"""The only code that orders writes in an experiment directory.

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

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any

from tune_sync import layout
from tune_sync.errors import DamagedError, FixCallError, NotWholeError, StoreFullError
from tune_sync.homes.recorded import Recovery, first_wrong, newest_of, recorded, staged
from tune_sync.homes.store import Store
from tune_sync.manifest import (
    FileEntry,
    Manifest,
    Placed,
    Seal,
    Union,
    manifest_from_json,
    seal_from_json,
    to_json,
    unite,
)


class Committer:
    """Orders the writes of one run in one experiment directory.

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
        self.store = store
        self._owner = owner
        self._fence = fence
        self._clock = clock
        self._new_id = new_id

    # Staging

    def begin(self, checkpoint: str) -> str:
        """Open a new attempt at `checkpoint`; returns its id. Nothing is durable yet."""
        attempt = self._new_id()
        self.store.make_dir(layout.staged_key(checkpoint, attempt))
        return attempt

    def seal(self, checkpoint: str, seal: Seal) -> None:
        """Close an attempt: its bytes are durable, and then its seal, when this returns.

        May be called again with a longer list while the checkpoint is not placed.

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
        self._replace(layout.seal_key(checkpoint, seal.attempt), to_json(seal))
        self.store.sync(layout.attempt_key(checkpoint, seal.attempt))

    def attempts(self, trial: str) -> list[tuple[str, str]]:
        """What a trial has in staging now and did not place: `(checkpoint, attempt)`.

        What is placed has its intent there until `record` is done, and a crash needs that.
        """
        checkpoints = [e for e in self.store.list(f"{layout.STAGING_DIR}/{trial}") if e.is_dir]
        return [
            (checkpoint.key.removeprefix(layout.STAGING_DIR + "/"), attempt.key.rsplit("/", 1)[-1])
            for checkpoint in checkpoints
            for attempt in self.store.list(checkpoint.key)
            if self.store.info(f"{attempt.key}/{layout.INTENT}") is None
        ]

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
            attempts: Take these only: those whose writers reported to the driver. A process that
                was given up, and still writes, then cannot get in between. None takes all.
            metrics: For `Manifest.metrics`.

        Raises:
            NotWholeError: Nothing was sealed.
            ConfigError: `strict`, and ranks disagree about a file.
            LeaseLostError: Another run took over.
        """
        self._fence()
        seals = [s for s in self._seals(checkpoint) if attempts is None or s.attempt in attempts]
        union = unite(checkpoint, seals, strict=strict)
        intent = layout.intent_key(checkpoint, union.seals[0].attempt)
        data = layout.staged_key(checkpoint, union.seals[0].attempt)
        if self.store.info(data) is None and self.store.info(intent) is not None:
            placed = manifest_from_json(self.store.read(intent), intent)
            return Placed(placed, union.conflicts)
        self._gather(checkpoint, union)
        manifest = Manifest(
            checkpoint, self._owner, self._clock(), union.files, union.directories, metrics
        )
        self.store.write_at(intent, 0, to_json(manifest))
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
        self._replace(layout.manifest_key(checkpoint), to_json(manifest))
        self._sync_above(layout.manifest_key(checkpoint))
        self._discard(f"{layout.STAGING_DIR}/{checkpoint}")

    def manifest(self, checkpoint: str) -> Manifest | None:
        """The manifest of a published checkpoint, or None if it is not published.

        Raises:
            DamagedError: There is one, and it cannot be read.
        """
        key = layout.manifest_key(checkpoint)
        if self.store.info(key) is None or self.store.info(checkpoint) is None:
            return None
        return manifest_from_json(self.store.read(key), key)

    def published(self) -> Iterator[Manifest]:
        """All published checkpoints, in the order of their keys."""
        for checkpoint in recorded(self.store):
            manifest = self.manifest(checkpoint)
            if manifest is not None:
                yield manifest

    def retire(self, checkpoint: str) -> None:
        """Delete a checkpoint: gone at once for every reader; its bytes follow."""
        self._fence()
        self._set_aside(checkpoint)
        self._drop_intents(checkpoint)
        self._empty_trash()

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
        if self.store.info(incoming) is not None or self.store.info(key) is None:
            if durable:
                self.store.sync(incoming)
            self.store.rename(incoming, key)
        if durable:
            self.store.sync(layout.parent(key))

    # After a crash

    def recover(self) -> Recovery:
        """Complete what was placed or may have been, drop the rest. For the lease's owner only.

        After the end of another driver: nobody else knows by now what was reported.
        """
        newest = newest_of(recorded(self.store))
        return self._go_over(lambda c: self._place_late(c, newest.get(layout.parent(c), "")))

    def sweep(self) -> Recovery:
        """As `recover`, at the end of this run, which knows what was placed: that alone counts."""
        return self._go_over(lambda checkpoint: None)

    # Inside

    def _go_over(self, place_late: Callable[[str], Manifest | None]) -> Recovery:
        completed, dropped = [], []
        for checkpoint in list(staged(self.store)):
            manifest = self._finish_place(checkpoint) or place_late(checkpoint)
            if manifest is not None:
                self.record(manifest)
                completed.append(checkpoint)
            else:
                dropped.append(checkpoint)
        self._empty_trash()
        for directory in (layout.STAGING_DIR, layout.INCOMING_DIR, layout.TRASH_DIR):
            self.store.remove_tree(directory)
        if self.store.info(layout.INTERNAL_DIR) is not None:
            self.store.sync(layout.INTERNAL_DIR)  # an old intent must not come back
        forgotten = self._drop_orphaned_manifests()
        return Recovery(tuple(completed), tuple(dropped), forgotten)

    def _replace(self, key: str, data: bytes) -> None:
        """Replace a small file of ours: readers see the old one or the new one, whole.

        Durable once its parent is synced.
        """
        incoming = self.begin_file()
        self.store.write_at(incoming, 0, data)
        self.store.sync(incoming)
        self.store.make_dir(layout.parent(key))
        self.store.rename(incoming, key)

    def _sync_above(self, key: str) -> None:
        """Make the entry of `key` durable, and of every directory above it, which may be new."""
        while key:
            key = layout.parent(key)
            self.store.sync(key)

    def _seals(self, checkpoint: str) -> list[Seal]:
        seals = []
        for attempt in self.store.list(f"{layout.STAGING_DIR}/{checkpoint}"):
            key = f"{attempt.key}/seal.json"
            if attempt.is_dir and self.store.info(key) is not None:
                seals.append(seal_from_json(self.store.read(key), key))
        return seals

    def _intents(self, checkpoint: str) -> list[str]:
        """Keys of the intents of all attempts at `checkpoint`."""
        attempts = self.store.list(f"{layout.STAGING_DIR}/{checkpoint}")
        keys = (f"{attempt.key}/{layout.INTENT}" for attempt in attempts)
        return [key for key in keys if self.store.info(key) is not None]

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
        for directory in union.directories:
            self.store.make_dir(f"{data}/{directory}")
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

        The manifest must not come back: it would stand for whatever is placed next.
        """
        manifest = layout.manifest_key(checkpoint)
        visible = self.store.info(checkpoint) is not None
        if visible or self.store.info(manifest) is not None:
            self.store.remove(manifest)
            if self.store.info(layout.parent(manifest)) is not None:
                self.store.sync(layout.parent(manifest))
        if visible:
            self._move_to_trash(checkpoint)

    def _discard(self, staged: str) -> None:
        """Remove staging: moved away at once, or late writes could keep refilling it."""
        if self.store.info(staged) is not None:
            self._move_to_trash(staged)
            self._empty_trash()

    def _move_to_trash(self, key: str) -> None:
        try:
            self.store.make_dir(layout.TRASH_DIR)
            self.store.rename(key, f"{layout.TRASH_DIR}/{self._new_id()}")
        except StoreFullError:  # a move needs room too, and there is none until this has gone
            self.store.remove_tree(key)

    def _empty_trash(self) -> None:
        """Remove what was set aside; first make sure that it does not come back in parts."""
        entries = self.store.list(layout.TRASH_DIR)
        if entries:
            self.store.sync(layout.TRASH_DIR)
        for entry in entries:  # not the directory itself: others move things in
            self.store.remove_tree(entry.key)

    def _check_lengths(self, directory: str, files: Iterable[FileEntry]) -> None:
        wrong = first_wrong(self.store, directory, files)
        if wrong:
            raise NotWholeError(f"{wrong}; report the checkpoint again")

    def _place_late(self, checkpoint: str, after: str) -> Manifest | None:
        """Place what one writer has sealed as complete; None if there is nothing of that kind.

        It may have been sent on behind a driver that was then killed. What is not later than all
        that is published may have been deleted meanwhile, and does not come back.
        """
        if layout.by_age(checkpoint) <= layout.by_age(after):
            return None
        with suppress(DamagedError, FixCallError, NotWholeError):
            whole = [seal for seal in self._seals(checkpoint) if seal.is_all]
            if whole:
                seal = max(whole, key=lambda seal: seal.sealed_s)
                self._check_lengths(layout.staged_key(checkpoint, seal.attempt), seal.files)
                return self.place(checkpoint, attempts=[seal.attempt]).manifest
        return None

    def _finish_place(self, checkpoint: str) -> Manifest | None:
        """Finish a `place` that a crash cut off; None if none was under way.

        An intent says that the driver had taken the checkpoint for whole. Its bytes were durable
        before that, and are either still in staging or already in their place.
        """
        for intent in self._intents(checkpoint):
            data = f"{layout.parent(intent)}/data"
            staged = self.store.info(data) is not None
            where = data if staged else checkpoint
            if self.store.info(where) is None:
                continue
            try:
                manifest = manifest_from_json(self.store.read(intent), intent)
                self._check_lengths(where, manifest.files)
            except (DamagedError, NotWholeError):
                continue
            if staged:
                self._move_into_place(intent, checkpoint)
            return manifest
        return None

    def _move_into_place(self, intent: str, checkpoint: str) -> None:
        if self._intents(checkpoint) != [intent] or self.store.info(checkpoint) is not None:
            # Rare: what is there goes before this comes, so the intent has to survive by itself.
            self.store.sync(intent)
            self._sync_above(intent)
            self._drop_intents(checkpoint, keep=intent)
        self._set_aside(checkpoint)
        self.store.make_dir(layout.parent(checkpoint))
        self.store.rename(f"{layout.parent(intent)}/data", checkpoint)

    def _drop_orphaned_manifests(self) -> tuple[str, ...]:
        """Forget checkpoints that someone removed by hand; returns them."""
        gone = [c for c in recorded(self.store) if self.store.info(c) is None]
        for key in map(layout.manifest_key, gone):
            self.store.remove(key)
            self.store.sync(layout.parent(key))
        return tuple(gone)
