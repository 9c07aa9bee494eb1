"""Ranks of one checkpoint in a bucket, where all of them put to the same keys."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import pytest
import xxhash

from tests.unit.test_bucket_commit import C0, CountingBucket, publish, staged
from tune_sync.homes.bucket import streams as bucket_streams
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.homes.digests import digest_of
from tune_sync.manifest import FileEntry, Seal
from tune_sync.transfer.upload import SMALL_BYTES, CheckpointUpload


@pytest.fixture
def bucket() -> CountingBucket:
    return CountingBucket()


@pytest.fixture
def committer(bucket: CountingBucket) -> BucketCommitter:
    return BucketCommitter(bucket, "me")


@pytest.mark.parametrize("etags", [True, False])
@pytest.mark.parametrize("last", [0, 1])
def test_of_ranks_that_put_past_conditions_the_manifest_lists_whose_bytes_are_there(
    bucket: CountingBucket, committer: BucketCommitter, caplog: pytest.LogCaptureFixture,
    last: int, etags: bool,
) -> None:  # fmt: skip
    parts = [
        staged(committer, {"same": b"=", "x": body}, rank, etags=etags)
        for rank, body in ((0, b"zero"), (1, b"ones"))
    ]
    there = (b"zero", b"ones")[last]
    bucket.put(f"{C0}/x", there)
    with caplog.at_level(logging.WARNING):
        manifest = publish(committer, *parts)
    assert manifest.files[1].digest == xxhash.xxh3_128_hexdigest(there)
    assert "bytes for x;" in caplog.text and "same" not in caplog.text
    assert ("put last" if last else "of rank 0") in caplog.text


@pytest.mark.parametrize("etags", [True, False])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_of_ranks_that_disagree_the_lowest_wins_in_whatever_order_they_put(
    bucket: CountingBucket, committer: BucketCommitter, caplog: pytest.LogCaptureFixture,
    order: tuple[int, ...], etags: bool,
) -> None:  # fmt: skip
    bodies = (b"zero", b"ones", b"twos")
    earlier = staged(committer, {"left": b"old"})
    committer.discard_attempt(C0, earlier)
    parts = [
        staged(committer, {"same": b"=", "left": b"new", "x": bodies[rank]}, rank, etags=etags)
        for rank in order
    ]
    with caplog.at_level(logging.WARNING):
        manifest = publish(committer, *parts)
    named = {f"{C0}/{file.path}": file.digest for file in manifest.files}
    there = {key: data for key, data in bucket.objects.items() if key.startswith("trial/")}
    assert there == {f"{C0}/left": b"new", f"{C0}/same": b"=", f"{C0}/x": b"zero"}
    assert named == {key: xxhash.xxh3_128_hexdigest(data) for key, data in there.items()}
    assert "ranks 0 and 1 report different bytes for x; stored those of rank 0" in caplog.text
    assert "same" not in caplog.text and "left" not in caplog.text


def test_equal_files_of_several_ranks_are_not_copied_when_they_are_published(
    bucket: CountingBucket, committer: BucketCommitter
) -> None:
    parts = [staged(committer, {f"file {n}": b"=" for n in range(200)}, rank) for rank in (1, 0)]
    before_count = bucket.requests_count
    publish(committer, *parts)
    assert bucket.requests_count - before_count <= 12


def test_a_file_that_is_put_again_is_the_later_one(
    bucket: CountingBucket, committer: BucketCommitter
) -> None:
    attempt = committer.begin(C0)
    for data in (b"first", b"again", b"thrice"):
        etag = committer.put_file(C0, attempt, "x", data)
    files = (FileEntry("x", 6, xxhash.xxh3_128_hexdigest(b"thrice")),)
    committer.seal(C0, Seal(attempt, 0, 0.0, files), {"x": etag})
    assert publish(committer, attempt).files == files
    assert bucket.objects[f"{C0}/x"] == b"thrice"


def test_what_waits_aside_is_recovered_without_an_intent(bucket: CountingBucket) -> None:
    dead = BucketCommitter(bucket, "dead")
    dead.discard_attempt(C0, staged(dead, {"x": b"old"}))
    attempt = dead.begin(C0)
    etag = dead.put_file(C0, attempt, "x", b"new")
    files = (FileEntry("x", 3, xxhash.xxh3_128_hexdigest(b"new")),)
    dead.seal(C0, Seal(attempt, 0, 0.0, files, (), 1), {"x": etag})
    assert BucketCommitter(bucket, "next").recover().completed == (C0,)
    assert bucket.objects[f"{C0}/x"] == b"new"


@pytest.mark.parametrize("whole_bytes", [10, 4 << 20])
def test_a_second_name_of_a_file_that_another_rank_replaced_has_the_bytes_of_its_own_rank(
    bucket: CountingBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_bytes: int
) -> None:
    monkeypatch.setattr(bucket_streams, "WHOLE_BYTES", whole_bytes)  # past that: no conditions
    home = BucketHome(bucket)
    uploads = [CheckpointUpload(home, C0, rank) for rank in range(2)]
    for rank, upload in enumerate(uploads):
        source = tmp_path / f"{rank}"
        source.write_bytes(bytes([rank]) * (SMALL_BYTES + 1))
        upload.add_file("model", source)
    for rank, upload in enumerate(uploads):
        upload.add_file(f"best{rank}", tmp_path / f"{rank}", same_as="model")
        upload.seal()
    home.publish(C0, False, [upload.attempt for upload in uploads])
    manifest = home.committer.manifest(C0)
    assert manifest is not None
    said = {file.path: file.digest for file in manifest.files}
    assert said == {path: digest_of(bucket.objects[f"{C0}/{path}"]) for path in said}
    for rank in range(2):
        assert said[f"best{rank}"] == digest_of((tmp_path / f"{rank}").read_bytes())
