"""Nothing in a bucket goes because a listing does not show it: a proxy may have answered that."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

import pytest
import xxhash

from tests.manifests import manifests_of
from tests.unit.test_bucket_commit import C0
from tune_sync import layout
from tune_sync.buckets.bucket import ObjectInfo
from tune_sync.errors import NotWholeError, StoreError
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.homes.bucket.staging import SEAL, intent_key, mark_key
from tune_sync.manifest import FileEntry, Manifest, Seal
from tune_sync.testing.memory_bucket import MemoryBucket

C1 = f"{layout.parent(C0)}/checkpoint_000001"
FILES = {"a": b"of a", "b": b"of b"}


class Listing(MemoryBucket):
    """Leaves what begins with one of `hidden` out of the first `count` listings that have any."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: Sequence[str] = ()
        self.count = 1_000
        self.put(layout.FORMAT_KEY, b"{}")

    def list(self, prefix: str) -> builtins.list[ObjectInfo]:
        found = super().list(prefix)
        kept = [o for o in found if not o.key.startswith(tuple(self.hidden))]
        if kept != found:
            self.count -= 1
        return kept if self.count >= 0 else found


@pytest.fixture
def bucket() -> Listing:
    return Listing()


def sealed(committer: BucketCommitter, checkpoint: str) -> str:
    attempt = committer.begin(checkpoint)
    etags = {p: committer.put_file(checkpoint, attempt, p, data) for p, data in FILES.items()}
    files = tuple(FileEntry(p, len(d), xxhash.xxh3_128_hexdigest(d)) for p, d in FILES.items())
    committer.seal(checkpoint, Seal(attempt, 0, 1.0, files, ranks_count=1), etags)
    return attempt


def published(committer: BucketCommitter, checkpoint: str) -> Manifest:
    placed = committer.place(checkpoint, attempts=[sealed(committer, checkpoint)])
    committer.record(placed.manifest)
    return placed.manifest


def hidden(name: str, attempt: str) -> str:
    return {
        "all": "", "files": C0, "a file": f"{C0}/b", "staging": layout.STAGING_DIR,
        "seal": mark_key(C0, attempt, SEAL), "internal": layout.INTERNAL_DIR,
    }[name]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "count"),
    [
        ("staging", 1),  # always, and of it alone: nothing tells
        *((what, n) for what in ("files", "a file", "seal", "internal", "all") for n in (1, 1_000)),
    ],
)
def test_recovery_drops_nothing_that_is_reported(bucket: Listing, what: str, count: int) -> None:
    attempt = sealed(BucketCommitter(bucket, "dead"), C0)
    before = dict(bucket.objects)
    bucket.hidden, bucket.count = [hidden(what, attempt)], count
    try:
        assert BucketCommitter(bucket, "next").recover().completed == (C0,)
    except StoreError as error:
        assert "a listing did not show it" in str(error) and "proxy" in str(error)
        assert bucket.objects == before
    else:
        assert count == 1, "what it needed was not listed"
    bucket.hidden = ()
    BucketCommitter(bucket, "next").recover()
    assert [m.checkpoint for m in manifests_of(BucketCommitter(bucket))] == [C0]


@pytest.mark.parametrize("what", ["files", "a file", "staging", "seal"])
def test_what_is_placed_is_no_half_for_a_listing(bucket: Listing, what: str) -> None:
    committer = BucketCommitter(bucket, "run")
    attempt = sealed(committer, C0)
    placed = committer.place(C0, attempts=[attempt])
    bucket.hidden = [hidden(what, attempt)]
    with pytest.raises(StoreError, match="a listing did not show it"):
        committer.record(placed.manifest)
    bucket.hidden = ()
    committer.record(placed.manifest)
    assert [m.checkpoint for m in manifests_of(committer)] == [C0]


def test_an_order_that_is_not_listed_is_not_dropped(bucket: Listing) -> None:
    committer = BucketCommitter(bucket, "dead")
    published(committer, C1)
    # Earlier than what is published: by its seals alone it would not come back.
    placed = committer.place(C0, attempts=[sealed(committer, C0)])
    committer._note_placed(C0, committer._orders[C0])
    bucket.hidden = [intent_key(C0)]
    with pytest.raises(StoreError, match="a listing did not show it"):
        BucketCommitter(bucket, "next").recover()
    bucket.hidden = ()
    assert BucketCommitter(bucket, "next").recover().completed == (placed.manifest.checkpoint,)


@pytest.mark.parametrize("what", [layout.parent(C0), C1])
def test_no_manifest_goes_of_a_checkpoint_that_is_there(bucket: Listing, what: str) -> None:
    committer = BucketCommitter(bucket, "dead")
    manifests = {published(committer, checkpoint).checkpoint for checkpoint in (C0, C1)}
    before = dict(bucket.objects)
    bucket.hidden = [what]
    with pytest.raises(StoreError, match="a listing did not show it"):
        BucketCommitter(bucket, "next").recover()
    assert bucket.objects == before
    assert {m.checkpoint for m in manifests_of(committer)} == manifests


def test_what_is_really_gone_is_forgotten_as_before(bucket: Listing) -> None:
    committer = BucketCommitter(bucket, "dead")
    for checkpoint in (C0, C1):
        published(committer, checkpoint)
    bucket.delete([f"{C0}/a", f"{C0}/b"])
    assert BucketCommitter(bucket, "next").recover().forgotten == (C0,)
    attempt = sealed(committer, C0)
    placed = committer.place(C0, attempts=[attempt])
    bucket.delete([f"{C0}/a"])
    with pytest.raises(NotWholeError, match="missing"):
        committer.record(placed.manifest)
