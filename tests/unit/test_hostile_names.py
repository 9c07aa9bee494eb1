"""What others have put into a bucket leads nowhere else, and stands for nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_bucket_commit import C0, staged
from tune_sync.buckets.ahead import RANGE_BYTES
from tune_sync.buckets.bucket import ObjectInfo
from tune_sync.buckets.files import get_files
from tune_sync.errors import DamagedError, PathRefusedError
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.homes.bucket.staging import Order, intent_key, mark_key
from tune_sync.layout import classify, manifest_key, seal_key
from tune_sync.testing.memory_bucket import MemoryBucket
from tune_sync.transfer.digests import Digests

C1 = "trial/checkpoint_000001"
LOOKED_AT_FIRST = "a/checkpoint_000000"


class Lenient(MemoryBucket):
    """A client that asks for whatever it is told, as some do."""

    def get(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        end = None if length_bytes is None else offset_bytes + length_bytes
        return self.objects[key][offset_bytes:end]


@pytest.mark.parametrize("size_bytes", [5, RANGE_BYTES + 1])
@pytest.mark.parametrize("name", ["a/../../outside", "/outside", "a//b", "./a", "../outside/a"])
def test_an_object_whose_name_leads_elsewhere_is_refused_before_anything_is_written(
    tmp_path: Path, name: str, size_bytes: int
) -> None:
    bucket, down, outside = Lenient(), tmp_path / "down", tmp_path / "outside"
    down.mkdir()
    outside.write_bytes(b"mine")
    bucket.objects |= {"a good one": b"1", name: bytes(size_bytes)}
    found = [ObjectInfo(key, len(data), 0.0) for key, data in bucket.objects.items()]
    with pytest.raises(PathRefusedError, match="does not stay inside"):
        get_files(bucket, found, down)
    assert not list(down.iterdir())
    assert outside.read_bytes() == b"mine"
    assert {path.name for path in tmp_path.iterdir()} == {"down", "outside"}


def test_a_listing_leaves_out_what_leads_elsewhere() -> None:
    bucket = MemoryBucket()
    names = ("trial/a", "trial/in/b", "trial/../../c", "trial//d", "trial/in/../../../e")
    bucket.objects |= dict.fromkeys(names, b"1")
    home = BucketHome(bucket)  # type: ignore[arg-type]
    assert [e.key for e in home.list("trial", True)] == ["trial/a", "trial/in", "trial/in/b"]
    assert [e.key for e in home.list("trial", False)] == ["trial/a", "trial/in"]


def test_a_manifest_of_another_checkpoint_vouches_for_nothing() -> None:
    bucket = MemoryBucket()
    home = BucketHome(bucket)  # type: ignore[arg-type]
    home.publish(C0, False, [staged(home.committer, {"x": b"1"})])
    bucket.objects[manifest_key(C1)] = bucket.objects[manifest_key(C0)]
    bucket.objects[f"{C1}/x"] = b"1"
    with pytest.raises(DamagedError, match=C0):
        Digests().of(home, classify(f"{C1}/x"))


def test_an_order_of_another_checkpoint_publishes_nothing() -> None:
    bucket = MemoryBucket()
    committer = BucketCommitter(bucket, "me")
    attempt = staged(committer, {"x": b"1"})
    order = Order(committer.place(C0).manifest)
    bucket.objects[intent_key(LOOKED_AT_FIRST)] = order.to_json()
    for mark in ("begun.json", "seal.json"):
        there = mark_key(LOOKED_AT_FIRST, attempt, mark)
        bucket.objects[there] = bucket.objects[mark_key(C0, attempt, mark)]
    recovery = BucketCommitter(bucket, "next").recover()
    assert recovery.dropped == (C0,)  # of the other one an order is there, and cannot be read
    assert manifest_key(C0) not in bucket.objects


def test_a_seal_of_another_attempt_is_no_part() -> None:
    bucket = MemoryBucket()
    committer = BucketCommitter(bucket, "me")
    first, second = staged(committer, {"x": b"1"}), staged(committer, {"x": b"1"}, rank=1)
    bucket.objects[seal_key(C0, second)] = bucket.objects[seal_key(C0, first)]
    placed = committer.place(C0, attempts=[second])
    with pytest.raises(DamagedError, match=f"seal of attempt '{first}'"):
        committer.record(placed.manifest)
