"""What a bucket holds of an experiment's checkpoints: manifests, staging, objects. Read only."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from tune_sync import layout
from tune_sync.buckets.bucket import Bucket, ObjectInfo
from tune_sync.errors import (
    DamagedError,
    NotWholeError,
    PathRefusedError,
    RanksDisagreeError,
    UnreadableManifestError,
)
from tune_sync.homes.bucket.aside import aside_key
from tune_sync.homes.bucket.listings import check_unlisted, is_there
from tune_sync.homes.bucket.staging import (
    BEGUN,
    OVER,
    SEAL,
    Order,
    SealedPart,
    Staged,
    group,
    immutable,
    intent_key,
    mark_key,
    order_from_json,
    part_from_json,
)
from tune_sync.homes.recorded import digest_in_steps
from tune_sync.homes.tries import check_reported, lacks_parts, may_come, warn_of_parts, whole_tries
from tune_sync.manifest import Manifest, manifest_of, unite

T = TypeVar("T")

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# Small objects that are read at once: each takes a round trip, and little else.
READS_COUNT = 16
# So long Ray's control loop may wait for the parts of ranks that have to agree: one round trip.
STRICT_S = 10.0


class BucketRecords:
    """Methods may be called from any thread.

    Args:
        bucket: Rooted at the experiment.
    """

    keeps_all = False  # see `recorded.passed_by`

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        # Checkpoints of which something could not be read: nothing of them is dropped for that.
        self._unread: set[str] = set()

    def manifest(self, checkpoint: str) -> Manifest | None:
        """The manifest of a published checkpoint, or None if it is not published.

        Raises:
            DamagedError: There is one, and it cannot be read.
        """
        key = layout.manifest_key(checkpoint)
        try:
            return self._read(key, lambda data: manifest_of(checkpoint, data, key))
        except FileNotFoundError:
            return None

    def _read(self, key: str, parse: Callable[[bytes], T]) -> T:
        """Read a small object; twice if it cannot be parsed, as something else may have answered.

        Raises:
            DamagedError: What `parse` raises, each time.
        """
        with suppress(DamagedError):
            return parse(self.bucket.get(key))
        return parse(self.bucket.get(key))

    def _refuse_published(self, checkpoint: str) -> None:
        """Raise ImmutableError if it is published, as its manifest says: others answer a HEAD, too.

        Raises:
            UnreadableManifestError: There is one, and it cannot be read.
        """
        if self.bucket.info(layout.manifest_key(checkpoint)) is None:
            return
        try:
            if self.manifest(checkpoint) is not None:
                raise immutable(checkpoint)
        except DamagedError as error:
            raise UnreadableManifestError(f"{immutable(checkpoint)} ({error})") from error

    def recorded(self) -> list[str]:
        """Keys of checkpoints that have a manifest, in order, by one listing."""
        start = layout.MANIFESTS_DIR + "/"
        keys = [o.key for o in self.bucket.list(layout.MANIFESTS_DIR)]
        return [k.removeprefix(start).removesuffix(".json") for k in keys if k.endswith(".json")]

    def check_attempt(self, checkpoint: str, attempt: str) -> None:
        """Raise unless an attempt may still write. Ask before each batch and each large file.

        Raises:
            NotWholeError: It was given up, or the checkpoint was published without it.
        """
        if not is_there(self.bucket, mark_key(checkpoint, attempt, BEGUN)):
            raise NotWholeError(f"attempt {attempt} at {checkpoint} is over; report it again")

    # For those who order writes

    def _is_recorded(self, manifest: Manifest) -> bool:
        """Whether an earlier `record` of the same manifest came as far as putting it."""
        found = self.manifest(manifest.checkpoint)
        if found is None:
            return False
        if (found.owner, found.published_s) != (manifest.owner, manifest.published_s):
            raise immutable(manifest.checkpoint)
        return True

    def _staged(self, below: str) -> dict[str, Staged]:
        prefix = f"{layout.STAGING_DIR}/{below}".rstrip("/")
        return group(o.key for o in self.bucket.list(prefix))

    def _all_staged(self) -> dict[str, Staged]:
        """What is staged of all checkpoints; that it is nothing has to be seen in two listings."""
        staged = self._staged("")
        if not staged:
            objects, directories = self.bucket.list_dir(layout.INTERNAL_DIR)
            if layout.FORMAT_KEY not in {o.key for o in objects}:
                check_unlisted(self.bucket, [layout.FORMAT_KEY])
            if layout.STAGING_DIR in directories:  # some stores keep it when it is empty
                staged = self._staged("")
        return staged

    def _check_reported(self, checkpoint: str, taken: Collection[str], staged: Staged) -> None:
        """See `tries.check_reported`. A seal that is not listed is asked for by its key."""
        check_unlisted(self.bucket, _unlisted_seals(checkpoint, taken, staged))
        check_reported(checkpoint, taken, staged.sealed())

    def _part(self, checkpoint: str, attempt: str) -> SealedPart:
        key = mark_key(checkpoint, attempt, SEAL)
        with self._notes_unread(checkpoint):
            return self._read(key, lambda data: part_from_json(attempt, data, key))

    def _order(self, checkpoint: str) -> Order:
        key = intent_key(checkpoint)
        with self._notes_unread(checkpoint):
            return self._read(key, lambda data: order_from_json(checkpoint, data, key))

    @contextmanager
    def _notes_unread(self, checkpoint: str) -> Iterator[None]:
        try:
            yield
        except DamagedError:
            self._unread.add(checkpoint)
            raise

    def _parts(self, checkpoint: str, attempts: Collection[str]) -> list[SealedPart]:
        with ThreadPoolExecutor(READS_COUNT) as pool:
            return list(pool.map(partial(self._part, checkpoint), attempts))

    def _readable(
        self, checkpoint: str, staged: Staged
    ) -> tuple[list[SealedPart], list[Exception]]:
        """All parts that can be read; and why others cannot: they must not hide these."""
        errors: list[Exception] = []

        def part(attempt: str) -> SealedPart | None:
            try:
                return self._part(checkpoint, attempt)
            except (DamagedError, PathRefusedError) as error:
                errors.append(error)
                return None

        with ThreadPoolExecutor(READS_COUNT) as pool:
            found = list(pool.map(part, staged.sealed()))
        return [one for one in found if one is not None], errors

    def _keeps_unreadable(self, checkpoint: str, staged: Staged) -> bool:
        """Whether something of it cannot be read, or could not before; warns. See `homes.records`.

        What is between here and the store may have answered in its place. So that it is published
        is looked for in a listing, too, before it is dropped.

        Raises:
            StoreError: There is a seal, or an order to publish it, that was not listed.
        """
        key = layout.manifest_key(checkpoint)
        if any(found.key == key for found in self.bucket.list(layout.parent(key))):
            tell_listed(checkpoint)
            return True
        if staged.retired():
            return False
        intents = [] if staged.has_intent else [intent_key(checkpoint)]
        seals = _unlisted_seals(checkpoint, staged.live(), staged)
        check_unlisted(self.bucket, [*intents, *seals])
        errors = self._readable(checkpoint, staged)[1]
        for error in errors:
            logger.warning(
                "%s is not published, and its objects stay until you remove %s/%s: %s",
                checkpoint, layout.STAGING_DIR, checkpoint, error,
            )  # fmt: skip
        if (could_not := checkpoint in self._unread) and not errors:
            logger.warning(
                "%s is not published now, and its objects stay, as something of it could not be "
                "read: restore, or clean up, once more; if it stays so, remove %s/%s",
                checkpoint, layout.STAGING_DIR, checkpoint,
            )  # fmt: skip
        return could_not or bool(errors)

    def _tell_not_gone(self, checkpoint: str) -> None:
        logger.warning(
            "%s was to be removed, and some of it is there, or comes just now: its staging stays, "
            "for the next restore or cleanup", checkpoint,
        )  # fmt: skip

    def _refuse_conflicts(self, checkpoint: str, attempts: Collection[str]) -> None:
        """Raise RanksDisagreeError if they do, and the bucket tells that within `STRICT_S`."""
        found: list[RanksDisagreeError] = []

        def look() -> None:
            with suppress(Exception):  # `record` meets it again, and tells
                seals = [part.seal for part in self._parts(checkpoint, attempts)]
                try:
                    unite(checkpoint, seals, strict=True)
                except RanksDisagreeError as error:
                    found.append(error)

        looking = threading.Thread(target=look, name="tune_sync-strict", daemon=True)
        looking.start()
        looking.join(STRICT_S)
        if found:
            raise found[0]

    def _whole_tries(self, checkpoint: str, staged: Staged) -> list[tuple[str, ...]]:
        """Attempts that each surely are the whole checkpoint, the latest first; warns of others."""
        parts = {p.seal.attempt: p for p in self._readable(checkpoint, staged)[0]}
        seals = [part.seal for part in parts.values()]
        tries = [tuple(seal.attempt for seal in one) for one in whole_tries(seals)]
        if not tries:
            warn_of_parts(checkpoint, seals)
        return [t for t in tries if self._is_untouched(checkpoint, [parts[a] for a in t], staged)]

    def _may_be_whole_later(
        self, checkpoint: str, staged: Staged, after: str, sent_since_s: float | None
    ) -> bool:
        """Whether parts of other ranks are missing, and may come. See `tries.may_come`."""
        is_later = layout.by_age(checkpoint) > layout.by_age(after)
        if staged.retired() or not (staged.has_intent or is_later):
            return False
        seals = [part.seal for part in self._readable(checkpoint, staged)[0]]
        if not staged.has_intent:
            return may_come(seals, sent_since_s) and lacks_parts(seals)
        with suppress(DamagedError):
            lacks = self._lacks_reported(checkpoint, set(staged.sealed()))
            return lacks and may_come(seals, sent_since_s)
        return False

    def _lacks_reported(self, checkpoint: str, sealed: set[str]) -> bool:
        """Whether seals of some parts are there, and not of all that its order names."""
        reported = set(self._order(checkpoint).attempts or ())
        return bool(reported & sealed) and not reported <= sealed

    def _is_untouched(self, checkpoint: str, parts: Sequence[SealedPart], staged: Staged) -> bool:
        """Whether no other attempt wrote over files of these, where no e-tags will tell."""
        aside = set(staged.keys)
        files = [
            (file, part.etags)
            for part in parts
            for file in part.seal.files
            if aside_key(checkpoint, part.seal.attempt, file.path) not in aside
        ]
        is_alone = len(staged.marks) == len(parts)
        if is_alone or all(etags.get(file.path) for file, etags in files):
            return True
        there = self._objects(checkpoint, [file.path for file, _ in files])
        digests: dict[str, set[str]] = {}
        for file, _ in files:
            digests.setdefault(file.path, set()).add(file.digest)
        return all(
            path in there and self._digest(there[path]) in known for path, known in digests.items()
        )

    def _objects(self, checkpoint: str, named: Iterable[str] = ()) -> dict[str, ObjectInfo]:
        """Path inside a checkpoint -> what is there.

        Args:
            checkpoint: Its key.
            named: Paths that should be there: some that are not listed are asked for.

        Raises:
            StoreError: One of these is there, though it was not listed.
        """
        found = {o.key.removeprefix(checkpoint + "/"): o for o in self.bucket.list(checkpoint)}
        missing = sorted(set(named) - found.keys())[:READS_COUNT]
        check_unlisted(self.bucket, [f"{checkpoint}/{path}" for path in missing])
        return found

    def _digest(self, there: ObjectInfo) -> str:
        return digest_in_steps(partial(self.bucket.get, there.key), there.size_bytes)


def tell_listed(checkpoint: str) -> None:
    """Warn of what may be published: of a manifest one answer says that it is there, one not."""
    logger.warning(
        "the manifest of %s is listed, and was not there when it was read: nothing of it is "
        "touched until the next restore or cleanup; look at what is between here and the store, as "
        "a proxy", checkpoint,
    )  # fmt: skip


def _unlisted_seals(checkpoint: str, attempts: Iterable[str], staged: Staged) -> list[str]:
    """Where seals of these attempts would be that are not in a listing of staging."""
    ended = {a for a, marks in staged.marks.items() if marks & {SEAL, OVER}}
    return [mark_key(checkpoint, attempt, SEAL) for attempt in attempts if attempt not in ended]
