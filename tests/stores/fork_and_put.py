"""Uses a bucket, forks, and uses it in the children and in the parent. Run as a program."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from tune_sync.buckets.bucket import Bucket
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.url import parse_bucket_url


def main(url: str, engine: str) -> int:
    bucket = open_bucket(parse_bucket_url(url), {"engine": engine} if engine else {})
    bucket.put("parent", b"1")
    bucket.put_stream("parent-stream", [b"1" * (20 << 20)])
    children = [os.fork() or in_child(bucket, number) for number in range(4)]
    statuses = [os.waitpid(child, 0)[1] for child in children]
    bucket.put("parent-again", b"1")
    return int(any(statuses))


def in_child(bucket: Bucket, number: int) -> NoReturn:
    try:
        bucket.put(f"child-{number}", b"1")
        bucket.put_stream(f"stream-{number}", [b"1" * (6 << 20)])
        assert bucket.get(f"child-{number}") == b"1"
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
