"""What an experiment directory holds of checkpoints, for `commit`, which orders writes. Read only.

Its twin for buckets is `bucket.records`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from tune_sync import layout
from tune_sync.errors import WRONG_IN_ITSELF, DamagedError, NotWholeError, PathRefusedError
from tune_sync.homes.recorded import all_below, digest_in_steps, first_wrong, recorded
from tune_sync.homes.store import Info, Store, is_linked_away
from tune_sync.homes.trash import gone_key
from tune_sync.homes.tries import check_reported, lacks_parts, may_come
from tune_sync.manifest import (
    FileEntry,
    Manifest,
    Seal,
    Union,
    manifest_of,
    seal_from_json,
    unite,
)

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


class Records:
    """The half of `commit.Committer` that reads. Nothing is kept between two calls.

    Args:
        store: Rooted at the experiment directory.
    """

    keeps_all = False  # see `recorded.passed_by`

    def __init__(self, store: Store) -> None:
        self.store = store

    def manifest(self, checkpoint: str) -> Manifest | None:
        """The manifest of a published checkpoint, or None if it is not published.

        Raises:
            DamagedError: There is one, and it cannot be read.
        """
        key = layout.manifest_key(checkpoint)
        if self.store.info(key) is None or self.store.info(checkpoint) is None:
            return None
        return manifest_of(checkpoint, self.store.read(key), key)

    def attempts(self, trial: str) -> list[tuple[str, str]]:
        """What a trial has in staging now and did not place: `(checkpoint, attempt)`.

        What is placed has its intent there until `record` is done. A crash needs that, and where
        a power cut takes it the seals of all ranks.
        """
        above = f"{layout.STAGING_DIR}/{trial}".rstrip("/")
        staged = [e.key for e in self.store.list(above) if e.is_dir]
        checkpoints = [key.removeprefix(layout.STAGING_DIR + "/") for key in staged]
        return [
            (checkpoint, attempt.key.rsplit("/", 1)[-1])
            for checkpoint in checkpoints
            if not self._intents(checkpoint)
            for attempt in self.store.list(f"{layout.STAGING_DIR}/{checkpoint}")
        ]

    def is_placed(self, checkpoint: str, attempts: Collection[str]) -> bool:
        """Whether it was placed from these attempts, and `record` has not come to its end."""
        intents = {layout.intent_key(checkpoint, attempt): attempt for attempt in attempts}
        return any(
            self.store.info(layout.staged_key(checkpoint, intents[intent])) is None
            for intent in self._intents(checkpoint)
            if intent in intents
        )

    # For those who order writes

    def _seals(self, checkpoint: str, only: Collection[str] | None = None) -> list[Seal]:
        """Those of these attempts, or of all. Raises DamagedError where one cannot be read."""
        staged = self.store.list(f"{layout.STAGING_DIR}/{checkpoint}")
        wanted = [e for e in staged if only is None or e.key.rsplit("/", 1)[-1] in only]
        return [seal for attempt in wanted if (seal := self._seal(attempt)) is not None]

    def _seal(self, attempt: Info) -> Seal | None:
        key = f"{attempt.key}/seal.json"
        if not attempt.is_dir or self.store.info(key) is None:
            return None
        seal = seal_from_json(self.store.read(key), key)
        return seal if attempt.key.endswith(f"/{seal.attempt}") else None  # it is another one's

    def _has_later(self, checkpoint: str, seal: Seal) -> bool:
        """Whether there is a seal of the same attempt that was made after this one."""
        key = layout.seal_key(checkpoint, seal.attempt)
        with suppress(FileNotFoundError, DamagedError, PathRefusedError):
            return seal_from_json(self.store.read(key), key).sealed_s > seal.sealed_s
        return False

    def _readable(self, checkpoint: str) -> tuple[list[Seal], list[Exception]]:
        """As `_seals`; and why others cannot be read: they must not hide these."""
        seals, errors = [], list[Exception]()
        for attempt in self.store.list(f"{layout.STAGING_DIR}/{checkpoint}"):
            try:
                seal = self._seal(attempt)
            except (DamagedError, PathRefusedError) as error:
                errors.append(error)
            else:
                seals += [] if seal is None else [seal]
        return seals, errors

    def _seals_of_dead(self, checkpoint: str) -> list[Seal]:
        """What can be read, with the parts that a driver had noted which could not publish them."""
        (seals, _), key = self._readable(checkpoint), layout.reported_key(checkpoint)
        try:
            parts = tuple(str(part) for part in json.loads(self.store.read(key))["parts"])
        except FileNotFoundError:
            return seals
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            logger.warning("%s is not readable (%r), and left out", key, error)
            return seals
        told = [s for s in seals if s.attempt in parts and s.staged_as is None]
        return [replace(s, parts=parts) if s in told else s for s in seals]

    def _keeps_unreadable(self, checkpoint: str) -> bool:
        """Whether there are seals that cannot be read, as of a newer version; warns of them.

        They are for a person to look at: what they tell of may be whole.
        """
        for error in (errors := self._readable(checkpoint)[1]):
            logger.warning(
                "%s is not published, and stays in %s/%s until you remove that: %s",
                checkpoint, layout.STAGING_DIR, checkpoint, error,
            )  # fmt: skip
        return bool(errors)

    def _orphaned(self) -> list[str]:
        """Published checkpoints that someone removed by hand."""
        gone = []
        for checkpoint in recorded(self.store):
            if self.store.info(checkpoint) is not None:
                continue
            if is_linked_away(self.store, checkpoint):
                logger.warning(
                    "%s is reached through a link to what is not there, and does not count until "
                    "it is: mount it, or remove the link", checkpoint,
                )  # fmt: skip
            else:
                gone.append(checkpoint)
        return gone

    def _check_lengths(self, directory: str, files: Iterable[FileEntry]) -> None:
        wrong = first_wrong(self.store, directory, files)
        if wrong:
            raise NotWholeError(f"{wrong}; report the checkpoint again")

    def _is_there(self, checkpoint: str, first: Seal, seal: Seal) -> bool:
        """Whether the bytes of a part are in its staging, or were moved to those of the first."""
        places = [layout.staged_key(checkpoint, s.attempt) for s in (seal, first)]
        return all(self.store.info(place) is not None for place in places) and all(
            any(not first_wrong(self.store, place, [file]) for place in places)
            for file in seal.files
        )

    def _reported(self, checkpoint: str, attempts: Collection[str] | None) -> list[Seal]:
        """The seals of these attempts, all of them. Raises NotWholeError where one is not there."""
        seals = self._seals(checkpoint, attempts)
        if attempts is not None:
            check_reported(checkpoint, attempts, [seal.attempt for seal in seals])
        return seals

    def _intents(self, checkpoint: str) -> list[str]:
        """Keys of the intents of all attempts at `checkpoint`."""
        attempts = self.store.list(f"{layout.STAGING_DIR}/{checkpoint}")
        keys = (f"{attempt.key}/{layout.INTENT}" for attempt in attempts)
        return [key for key in keys if self.store.info(key) is not None]

    def _is_taken(self, checkpoint: str) -> bool:
        """Whether anything of that name is visible, published, or on its way out."""
        keys = (checkpoint, layout.manifest_key(checkpoint), gone_key(checkpoint))
        return any(self.store.info(key) is not None for key in keys)

    def _visible_union(self, checkpoint: str) -> Union | None:
        """The parts that what is visible was made of; None if they are not there.

        For where the intent is lost: it is not synced, so a power cut may leave the rename without
        it. Seals are durable before. Of earlier tries, and of those who reported to nobody, there
        may be some too: only bytes tell which.
        """
        visible = self.store.info(checkpoint)
        seals = self._readable(checkpoint)[0] if visible is not None and visible.is_dir else []
        for first in seals:
            if self.store.info(layout.staged_key(checkpoint, first.attempt)) is not None:
                continue  # it was not moved into place
            if first_wrong(self.store, checkpoint, first.files):
                continue  # its bytes need not be read
            with suppress(NotWholeError, *WRONG_IN_ITSELF):
                parts = self._visible_parts(checkpoint, first, seals)
                union = unite(checkpoint, parts, strict=False)
                if self._is_visible(checkpoint, union):
                    return union
        return None

    def _visible_parts(self, checkpoint: str, first: Seal, seals: Collection[Seal]) -> list[Seal]:
        """This part, and all of higher ranks of which all that no lower one has is visible.

        Which was reported of a rank, and whether any was, nobody knows by now. So each counts as
        a rank of its own, or the newest of a rank would hide what was taken.
        """
        parts, names = [first], {file.path for file in first.files}
        others = [s for s in seals if s.rank > first.rank and s.is_confirmed and not first.is_all]
        for seal in sorted(others, key=lambda s: s.rank):
            below = [self.store.info(f"{checkpoint}/{name}") for name in seal.directories]
            if all(found is not None and found.is_dir for found in below) and all(
                file.path in names or self._has_bytes(checkpoint, file) for file in seal.files
            ):
                parts.append(replace(seal, rank=first.rank + len(parts)))
                names |= {file.path for file in seal.files}
        return parts

    def _has_bytes(self, checkpoint: str, file: FileEntry) -> bool:
        read = partial(self.store.read, f"{checkpoint}/{file.path}")
        return (
            not first_wrong(self.store, checkpoint, [file])
            and digest_in_steps(read, file.size_bytes) == file.digest
        )

    def _known(self, checkpoint: str) -> Manifest | None:
        """`manifest`; None also if it cannot be read."""
        with suppress(DamagedError):
            return self.manifest(checkpoint)
        return None

    def _is_visible(self, checkpoint: str, union: Union) -> bool:
        """Whether what is visible is this and nothing else, byte for byte."""
        return (
            sorted(all_below(self.store, checkpoint)) == sorted(union.names)
            and not first_wrong(self.store, checkpoint, union.files)
            and all(self._has_bytes(checkpoint, file) for file in union.files)
        )

    def _may_be_whole_later(
        self, checkpoint: str, after: str, sent_since_s: float | None = None
    ) -> bool:
        """Whether parts of other ranks are missing, and may come. See `tries.may_come`."""
        if self._intents(checkpoint) or layout.by_age(checkpoint) <= layout.by_age(after):
            return False
        seals = self._seals_of_dead(checkpoint)
        return may_come(seals, sent_since_s) and lacks_parts(seals)
