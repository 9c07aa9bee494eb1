"""What lies in a bucket's staging, and what its parts say of a checkpoint. Pure: no I/O.

```
.tune_sync/staging/<checkpoint>/intent.json            what `place` was asked for
.tune_sync/staging/<checkpoint>/<attempt>/begun.json   the attempt may write
                                          data/…       files whose own keys were taken
                                          seal.json    what it wrote, with the store's e-tags
                                          over.json    it was given up
                                          retired.json not an attempt: a delete is under way
```
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tune_sync import layout
from tune_sync.buckets.bucket import ObjectInfo
from tune_sync.errors import (
    DamagedError,
    ImmutableError,
    NotWholeError,
    PathRefusedError,
)
from tune_sync.manifest import (
    FileEntry,
    Manifest,
    Seal,
    Union,
    manifest_of,
    seal_from_json,
    to_json,
)

# What each rank wrote at one key, with the e-tag that it got, or "".
Claims = list[tuple[FileEntry, str]]

INTENT = "intent.json"
BEGUN = "begun.json"
SEAL = "seal.json"
OVER = "over.json"
RETIRED = "retired.json"


@dataclass(slots=True)
class Staged:
    """What staging holds of one checkpoint.

    Attributes:
        keys: All its objects.
        has_intent: It was placed.
        marks: Attempt -> the names of its objects.
    """

    keys: list[str] = field(default_factory=list)
    has_intent: bool = False
    marks: dict[str, set[str]] = field(default_factory=dict)

    def live(self) -> list[str]:
        """Attempts that were begun and not given up."""
        return [a for a, marks in self.marks.items() if BEGUN in marks and OVER not in marks]

    def sealed(self) -> list[str]:
        """Those of them that are sealed."""
        return [a for a in self.live() if SEAL in self.marks[a]]

    def retired(self) -> list[str]:
        """Ids of deletes that were begun."""
        return [a for a, marks in self.marks.items() if RETIRED in marks]


@dataclass(frozen=True, slots=True)
class SealedPart:
    """One writer's part.

    Attributes:
        seal: What it wrote.
        etags: Path -> what the store said when it was written.
    """

    seal: Seal
    etags: Mapping[str, str]

    def to_json(self) -> bytes:
        """Encode it as a seal that knows e-tags."""
        return _extended(self.seal, {"etags": dict(self.etags)})


@dataclass(frozen=True, slots=True)
class Order:
    """What `place` was asked for.

    Attributes:
        manifest: The manifest, still without files.
        strict: See `manifest.unite`.
        attempts: Those to take; None takes all.
    """

    manifest: Manifest
    strict: bool = False
    attempts: tuple[str, ...] | None = None

    def to_json(self) -> bytes:
        """Encode it as a manifest that knows what it will be made of."""
        attempts = None if self.attempts is None else list(self.attempts)
        return _extended(self.manifest, {"strict": self.strict, "attempts": attempts})


def part_from_json(attempt: str, data: bytes, where: str) -> SealedPart:
    """Decode the part of one attempt. Raises as `manifest.seal_from_json` does."""
    seal = seal_from_json(data, where)
    if seal.attempt != attempt:
        raise DamagedError(f"{where} is the seal of attempt {seal.attempt!r}")
    etags = json.loads(data).get("etags", {})
    if not isinstance(etags, dict):
        raise DamagedError(f"{where}: its e-tags are not a JSON object")
    return SealedPart(seal, {str(path): str(etag) for path, etag in etags.items()})


def order_from_json(checkpoint: str, data: bytes, where: str) -> Order:
    """Decode the order of one checkpoint. Raises as `manifest.manifest_of` does."""
    manifest = manifest_of(checkpoint, data, where)
    body = json.loads(data)
    attempts = body.get("attempts")
    if attempts is not None and not isinstance(attempts, list):
        raise DamagedError(f"{where}: its attempts are not a list")
    ids = None if attempts is None else tuple(str(a) for a in attempts)
    return Order(manifest, bool(body.get("strict")), ids)


def mark_key(checkpoint: str, attempt: str, mark: str) -> str:
    """Where a mark of an attempt is."""
    return f"{layout.attempt_key(checkpoint, attempt)}/{mark}"


def intent_key(checkpoint: str) -> str:
    """Where the order to publish a checkpoint is, until that is done."""
    return f"{layout.STAGING_DIR}/{checkpoint}/{INTENT}"


def final_key(staged_key: str) -> str:
    """Where the bytes of a key in staging are put if nothing is there: there is no rename later.

    What is small, and finds something there, waits at its key in staging: see `put.put_own`.

    Raises:
        PathRefusedError: It is no key of an attempt's data.
    """
    parts = staged_key.removeprefix(layout.STAGING_DIR + "/").split("/")
    end = _checkpoint_end(parts)
    if not staged_key.startswith(layout.STAGING_DIR + "/") or parts[end + 1 : end + 2] != ["data"]:
        raise PathRefusedError(f"{staged_key!r} is not a key of staged data; refused")
    return layout.check_key("/".join(parts[:end] + parts[end + 2 :]))


def group(keys: Iterable[str]) -> dict[str, Staged]:
    """Sort objects in staging by the checkpoint that they belong to."""
    found: dict[str, Staged] = {}
    for key in keys:
        parts = key.removeprefix(layout.STAGING_DIR + "/").split("/")
        end = _checkpoint_end(parts)
        if not 0 < end < len(parts):
            continue
        staged = found.setdefault("/".join(parts[:end]), Staged())
        staged.keys.append(key)
        if parts[end:] == [INTENT]:
            staged.has_intent = True
        elif len(parts) == end + 2:
            staged.marks.setdefault(parts[end], set()).add(parts[end + 1])
    return found


def claims(union: Union, parts: Iterable[SealedPart]) -> dict[str, Claims]:
    """Path -> what each rank says that it put there, the lowest rank first; in the order of paths.

    Args:
        union: Of the seals of `parts`.
        parts: Those that were superseded do not count.
    """
    of_attempt = {part.seal.attempt: part for part in parts}
    found: dict[str, Claims] = {file.path: [] for file in union.files}
    for seal in union.seals:
        etags = of_attempt[seal.attempt].etags
        for entry in seal.files:
            found[entry.path].append((entry, etags.get(entry.path, "")))
    return found


def settle_all(
    checkpoint: str, claimed: Mapping[str, Claims], found: Mapping[str, ObjectInfo],
    waiting: Collection[str], settle_one: Callable[[ObjectInfo, Claims], FileEntry],
) -> tuple[FileEntry, ...]:  # fmt: skip
    """The files of the whole; each that does not wait aside is compared with what is there.

    Args:
        checkpoint: Its key.
        claimed: See `claims`.
        found: Path -> what is there.
        waiting: Paths whose lowest rank's bytes wait aside.
        settle_one: See `settle`.

    Raises:
        NotWholeError: One is missing, or nobody's.
    """
    for path in claimed.keys() - found.keys() - set(waiting):
        raise NotWholeError(f"{checkpoint}/{path} is missing; report the checkpoint again")
    return tuple(
        mine[0][0] if path in waiting else settle_one(found[path], mine)
        for path, mine in claimed.items()
    )


def settle(there: ObjectInfo, claimed: Claims, digest: Callable[[], str]) -> FileEntry:
    """Say which rank's file an object is. All ranks write to the same keys.

    Args:
        there: From a listing.
        claimed: See `claims`.
        digest: Reads the object; called only if nothing else tells.

    Raises:
        NotWholeError: It is nobody's.
    """
    fits = [(entry, etag) for entry, etag in claimed if entry.size_bytes == there.size_bytes]
    for entry, etag in fits:
        if etag and etag == there.etag:
            return entry
    # An e-tag that nobody knows: someone else wrote since, or the same bytes were sent twice.
    unknown = there.etag and any(etag for _, etag in fits)
    if fits and not unknown and len({entry for entry, _ in claimed}) == 1:
        return fits[0][0]
    if fits:
        is_there = digest()
        for entry, _ in fits:
            if entry.digest == is_there:
                return entry
    raise NotWholeError(
        f"{there.key} holds {there.size_bytes} bytes that no part of this checkpoint lists: "
        "another writer has replaced it; report the checkpoint again"
    )


def immutable(checkpoint: str) -> ImmutableError:
    """The error of a report under a name that is published."""
    return ImmutableError(
        f"{checkpoint} is published and never changes; what was now reported under that name is "
        "not stored: restore the experiment to go on from what is"
    )


def _checkpoint_end(parts: Sequence[str]) -> int:
    """How many parts, from the left, name the checkpoint; 0 if none does."""
    for number, part in enumerate(parts, 1):
        if layout.is_checkpoint_name(part):
            return number
    return 0


def _extended(record: Seal | Manifest, more: dict[str, Any]) -> bytes:
    return json.dumps(json.loads(to_json(record)) | more, separators=(",", ":")).encode()
