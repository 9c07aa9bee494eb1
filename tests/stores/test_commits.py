"""The order of commits, and the lease, in a real object store."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import xxhash

from tests.crash.ledger import Ledger
from tests.crash_buckets.invariants import check_at_once, check_recovered, check_stable
from tests.crash_buckets.run import Run
from tests.crash_buckets.scenarios import SCENARIOS
from tests.stores.seaweed import S3Server
from tune_sync.buckets.bucket import Bucket
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import LeaseHeldError
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.homes.bucket.lease import BucketLease, read_holder
from tune_sync.manifest import FileEntry, Seal
from tune_sync.testing.memory_bucket import MemoryBucket

STORIES = [name for name in SCENARIOS if "by_hand" not in name]
ENGINES = ("obstore", "pyarrow")


def fresh(server: S3Server, engine: str) -> Bucket:
    url = parse_bucket_url(f"s3://bucket/{uuid.uuid4().hex}")
    return open_bucket(url, {**server.options, "engine": engine})


def in_memory(bucket: Bucket) -> MemoryBucket:
    """A copy, to be looked at."""
    copy = MemoryBucket()
    for found in bucket.list(""):
        copy.put(found.key, bucket.get(found.key))
    return copy


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", STORIES)
def test_stories_end_as_they_should(server: S3Server, name: str, engine: str) -> None:
    bucket: Any = fresh(server, engine)
    ledger = Ledger()
    SCENARIOS[name](Run(bucket, ledger))
    check_at_once(in_memory(bucket), ledger)
    BucketCommitter(bucket).recover()
    after = in_memory(bucket)
    check_recovered(after, ledger, ())
    check_stable(after)


def test_no_etag_of_an_honest_writer_needs_the_bytes_to_be_read(server: S3Server) -> None:
    class NeverReads(BucketCommitter):
        def _digest(self, there: Any) -> str:
            raise AssertionError(f"{there} was read")

    bucket = fresh(server, "obstore")
    committer = NeverReads(bucket)
    checkpoint = "trial/checkpoint_000000"
    attempt = committer.begin(checkpoint)
    data = b"x" * (40 << 20)  # parts: its e-tag is no digest of the bytes
    etags = {
        "large": bucket.put_stream(f"{checkpoint}/large", [data], len(data)),
        "small": committer.put_file(checkpoint, attempt, "small", b"x"),
    }
    assert all(etags.values())
    files = (_entry("large", data), _entry("small", b"x"))
    committer.seal(checkpoint, Seal(attempt, 0, 0.0, files), etags)
    committer.record(committer.place(checkpoint, attempts=[attempt]).manifest)
    assert committer.manifest(checkpoint) is not None


def test_of_many_who_take_the_lease_one_has_it(server: S3Server) -> None:
    bucket = fresh(server, "obstore")
    leases = [BucketLease(bucket, f"run {number}") for number in range(8)]

    def take(lease: BucketLease) -> bool:
        try:
            lease.acquire()
        except LeaseHeldError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(take, leases)) == 1
    for lease in leases:
        lease.release()
    assert read_holder(bucket) is None


def _entry(path: str, data: bytes) -> FileEntry:
    return FileEntry(path, len(data), xxhash.xxh3_128_hexdigest(data))
