"""A put that late writers lose: where the store can, by conditions on what is there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tune_sync.buckets.bucket import Bucket
from tune_sync.errors import PutConflictError, StoreFullError

# Ranks that put the same file replace each other's; a try is lost for each that comes between.
REPLACE_TRIES_COUNT = 50


def put_own(
    bucket: Bucket, key: str, data: bytes | memoryview, check_own: Callable[[], None]
) -> str:
    """Put an object; returns its e-tag, or "".

    What is there is replaced only after `check_own`, and only if it is still what was there
    before that. Where the store knows no conditions, this is a plain put.

    Args:
        bucket: Where.
        key: Its name.
        data: All of its bytes.
        check_own: Raises if the caller may not write any more. Called only if something is there.

    Raises:
        PutConflictError: Others keep putting the same object.
    """
    if not bucket.capabilities.conditional_put:
        return bucket.put(key, data)
    for _ in range(REPLACE_TRIES_COUNT):
        with suppress(PutConflictError):
            return bucket.put(key, data, create_only=True)
        found = bucket.info(key)
        check_own()  # after the look, so that the e-tag is older
        if found is not None:
            with suppress(PutConflictError):
                return bucket.put(key, data, if_match=found.etag)
    raise PutConflictError(f"{key} is being put by others all the time; report it again")


def put_for_delete(bucket: Bucket, mark: str) -> None:
    """Tell recovery that a delete has begun. A full bucket is not told: the delete makes room."""
    with suppress(StoreFullError):
        bucket.put(mark, b"{}")
