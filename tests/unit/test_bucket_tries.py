"""Of several whole attempts at one checkpoint in a bucket, recovery loses none to another."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import xxhash

from tests.manifests import manifests_of
from tests.unit.test_bucket_commit import C0
from tune_sync import layout
from tune_sync.errors import NotWholeError
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.manifest import FileEntry, Seal
from tune_sync.testing.memory_bucket import MemoryBucket

OLD = {"large": b"large of old", "x": b"x of old", "y": b"y of old"}
NEW = {"large": b"large of new", "x": b"x of new", "y": b"y of new"}


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


def whole(
    committer: BucketCommitter, contents: Mapping[str, bytes], sealed_s: float, *,
    etags: bool = True,
) -> str:  # fmt: skip
    """An attempt that says that it is all. A large file's put has no condition."""
    attempt = committer.begin(C0)
    told = {"large": committer.bucket.put_stream(f"{C0}/large", [contents["large"]])}
    for path in ("x", "y"):
        told[path] = committer.put_file(C0, attempt, path, contents[path])
    files = tuple(
        FileEntry(path, len(data), xxhash.xxh3_128_hexdigest(data))
        for path, data in contents.items()
    )
    committer.seal(C0, Seal(attempt, 0, sealed_s, files, (), 1), told if etags else None)
    return attempt


def stored(bucket: MemoryBucket) -> dict[str, bytes]:
    """What the manifests list, each with the bytes that are there, checked."""
    found = {}
    for manifest in manifests_of(BucketCommitter(bucket)):
        for file in manifest.files:
            data = bucket.get(f"{manifest.checkpoint}/{file.path}")
            assert xxhash.xxh3_128_hexdigest(data) == file.digest
            found[file.path] = data
    return found


@pytest.mark.parametrize(("is_ordered", "etags"), [(True, True), (False, True), (False, False)])
def test_an_attempt_whose_large_file_was_replaced_takes_nothing_from_the_one_that_is_whole(
    bucket: MemoryBucket, *, is_ordered: bool, etags: bool
) -> None:
    committer = BucketCommitter(bucket, "old")
    whole(committer, OLD, 1.0, etags=etags)
    new = whole(committer, NEW, 2.0, etags=etags)
    bucket.put_stream(f"{C0}/large", [OLD["large"]])  # the older one's came last
    if is_ordered:
        placed = committer.place(C0, attempts=[new])
        with pytest.raises(NotWholeError, match="large holds 12 bytes that no part"):
            committer.record(placed.manifest)
    assert BucketCommitter(bucket, "next").recover().completed == (C0,)
    assert stored(bucket) == OLD
    assert not bucket.list(layout.STAGING_DIR)


@pytest.mark.parametrize("damaged", ["x", "y"])
def test_an_attempt_with_a_damaged_file_aside_takes_nothing_from_the_one_that_is_whole(
    bucket: MemoryBucket, damaged: str
) -> None:
    committer = BucketCommitter(bucket, "old")
    contents = {name: {**body, "large": b"the same"} for name, body in (("o", OLD), ("n", NEW))}
    whole(committer, contents["o"], 1.0)
    new = whole(committer, contents["n"], 2.0)
    bucket.put(f"{layout.staged_key(C0, new)}/{damaged}", b"? of new")
    assert BucketCommitter(bucket, "next").recover().completed == (C0,)
    assert stored(bucket) == contents["o"]


def test_the_attempt_whose_large_file_came_last_is_published_with_what_waits_aside(
    bucket: MemoryBucket,
) -> None:
    committer = BucketCommitter(bucket, "old")
    whole(committer, OLD, 1.0)
    whole(committer, NEW, 2.0)
    assert BucketCommitter(bucket, "next").recover().completed == (C0,)
    assert stored(bucket) == NEW
