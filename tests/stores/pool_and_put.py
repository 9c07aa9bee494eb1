"""Uses a bucket, and then one in each process of a pool. Run as a program."""

from __future__ import annotations

import multiprocessing
import sys

from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.retry import RetryBucket
from tune_sync.buckets.url import parse_bucket_url

_inherited: list[RetryBucket] = []


def opened(url: str, engine: str) -> RetryBucket:
    return open_bucket(parse_bucket_url(url), {"engine": engine} if engine else {})


def put(task: tuple[str, str, int]) -> bool:
    """With the parent's, where there is one."""
    url, engine, number = task
    bucket = _inherited[0] if _inherited else opened(url, engine)
    bucket.put_stream(f"pool-{number}", [b"1" * (6 << 20)])
    return bucket.info(f"pool-{number}") is not None


def main(url: str, engine: str, method: str) -> int:
    bucket = opened(url, engine)
    bucket.put("parent", b"1")
    _inherited.append(bucket)
    with multiprocessing.get_context(method).Pool(4) as pool:
        done = pool.map(put, [(url, engine, number) for number in range(4)])
    bucket.put("parent-again", b"1")
    return int(not all(done))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
