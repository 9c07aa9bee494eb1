"""Files that wait aside, in staging: something was at their own keys when they were put."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import xxhash

from tune_sync import layout
from tune_sync.buckets.bucket import Bucket, ObjectInfo
from tune_sync.buckets.files import WHOLE_BYTES
from tune_sync.errors import NotWholeError
from tune_sync.homes.bucket.staging import Claims
from tune_sync.manifest import FileEntry, Union

# Side by side; each holds a small file whole, so that together they stay below 64 MiB.
COPIES_COUNT = 4
# Of a large file: how much is read at a time.
STEP_BYTES = 8 << 20


def aside_key(checkpoint: str, attempt: str, path: str) -> str:
    """Where a file of an attempt waits if its own key is taken."""
    return f"{layout.staged_key(checkpoint, attempt)}/{path}"


def waiting_aside(
    checkpoint: str, union: Union, claimed: Mapping[str, Claims],
    found: Mapping[str, ObjectInfo], staged: Collection[str],
) -> dict[str, str]:  # fmt: skip
    """Path -> where the lowest rank's file waits: those whose bytes are not at their own keys.

    Args:
        checkpoint: Its key.
        union: Of its parts.
        claimed: See `staging.claims`.
        found: Path -> what is there.
        staged: Keys of all that is in its staging.
    """
    there = set(staged)
    lowest = {path: aside_key(checkpoint, a, path) for path, a in _lowest(union).items()}
    return {
        path: aside
        for path, aside in lowest.items()
        if aside in there and not _is_there(found.get(path), claimed[path])
    }


def take_in(
    bucket: Bucket, checkpoint: str, waiting: Mapping[str, str], claimed: Mapping[str, Claims],
    *, is_only: bool,
) -> None:  # fmt: skip
    """Put the lowest rank's files that wait aside at their own keys, whatever is there.

    May be called again after a crash.

    Args:
        bucket: Where.
        checkpoint: Its key; nothing is published of it.
        waiting: See `waiting_aside`.
        claimed: See `staging.claims`.
        is_only: No other attempt is sealed. Else what is there may be of one that is whole, and
            must not go to one that is not: all that waits is read before any of it is copied.

    Raises:
        NotWholeError: What waits is not what its writer listed.
    """

    def look(path: str) -> None:
        for _ in _checked(bucket, waiting[path], claimed[path][0][0]):
            pass

    def move(path: str) -> None:
        _copy(bucket, waiting[path], f"{checkpoint}/{path}", claimed[path][0][0])

    with ThreadPoolExecutor(COPIES_COUNT) as pool:
        for act in (move,) if is_only else (look, move):
            list(pool.map(act, waiting))


def _lowest(union: Union) -> Mapping[str, str]:
    """Path -> the attempt of the lowest rank that has it."""
    found: dict[str, str] = {}
    for seal in reversed(union.seals):
        found.update((file.path, seal.attempt) for file in seal.files)
    return found


def _is_there(there: ObjectInfo | None, claimed: Claims) -> bool:
    """Whether some rank put the lowest one's bytes, and nobody else put others since."""
    wanted = claimed[0][0]
    etag = there.etag if there is not None else ""
    return bool(etag) and any(entry == wanted and own == etag for entry, own in claimed)


def _copy(bucket: Bucket, aside: str, key: str, entry: FileEntry) -> None:
    chunks = _checked(bucket, aside, entry)
    if entry.size_bytes <= WHOLE_BYTES:
        bucket.put(key, b"".join(chunks))
    else:
        bucket.put_stream(key, chunks, entry.size_bytes)


def _checked(bucket: Bucket, aside: str, entry: FileEntry) -> Iterator[bytes]:
    digest = xxhash.xxh3_128()
    for start in range(0, entry.size_bytes, STEP_BYTES):
        data = bucket.get(aside, start, STEP_BYTES)
        digest.update(data)
        yield data
    if digest.hexdigest() != entry.digest:
        raise NotWholeError(f"{aside} is not what its writer put; report the checkpoint again")
