"""Whether an answer is what a bucket holds: nothing may go only because one does not show it.

`buckets.answers` tells most of what others answer in place of a store. Not all: a page may have an
e-tag, and a listing may be cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tune_sync.buckets.bucket import Bucket
from tune_sync.errors import StoreError

# Looks at what was not listed, side by side.
ASKED_COUNT = 16


def check_unlisted(bucket: Bucket, keys: Sequence[str]) -> None:
    """Ask for objects that a listing did not show, each by its key.

    Args:
        bucket: Where.
        keys: Of those that something says are there.

    Raises:
        StoreError: One of them is there.
    """
    if not keys:
        return
    look = partial(is_there, bucket)
    with ThreadPoolExecutor(min(ASKED_COUNT, len(keys))) as pool:
        for key, there in zip(keys, pool.map(look, keys), strict=True):
            if there:
                raise StoreError(
                    f"{key} is in the bucket, and a listing did not show it: the listing was not "
                    "what the store holds, and nothing is done by it; look at what is between "
                    "here and the store, as a proxy, then try again"
                )


def is_there(bucket: Bucket, key: str) -> bool:
    """Whether an object is there. A bucket that is away raises, as every access that fails.

    The answer to a HEAD has no body: "no such object" and "no such bucket" are one there. So what
    was not found is read.
    """
    if bucket.info(key) is not None:
        return True
    try:
        bucket.get(key)
    except FileNotFoundError:
        return False
    return True
