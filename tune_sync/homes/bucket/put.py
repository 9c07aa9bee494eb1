"""Puts that take nobody's place: where the store can, by a condition on what is there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tune_sync.buckets.bucket import Bucket
from tune_sync.errors import PutConflictError, StoreFullError


def put_own(
    bucket: Bucket, key: str, aside: str, data: bytes | memoryview, check_own: Callable[[], None]
) -> str:
    """Put an object at `key` if nothing is there, else `aside`; returns its e-tag at `key`, or "".

    Where the store knows no conditions, this is a plain put at `key`.

    Args:
        bucket: Where.
        key: Its name, which other ranks and earlier attempts may have taken.
        aside: A name that nobody else has.
        data: All of its bytes.
        check_own: Raises if the caller may not write any more. Called only if something is there.
    """
    if not bucket.capabilities.conditional_put:
        return bucket.put(key, data)
    with suppress(PutConflictError):
        return bucket.put(key, data, create_only=True)
    check_own()
    bucket.put(aside, data)
    return ""


def put_for_delete(bucket: Bucket, mark: str) -> None:
    """Tell recovery that a delete has begun. A full bucket is not told: the delete makes room."""
    with suppress(StoreFullError):
        bucket.put(mark, b"{}")
