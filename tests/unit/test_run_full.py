"""At its end a run removes nothing that was reported, whatever its destination refuses."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import xxhash

from tests.manifests import manifests_of
from tests.unit.staged import CHECKPOINT, sealed
from tune_sync.buckets.url import BucketUrl
from tune_sync.errors import (
    DamagedError,
    NotStoredError,
    NotWholeError,
    RanksDisagreeError,
    StoreFullError,
    StoreUnreachableError,
)
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.homes.bucket.site import BucketSite
from tune_sync.homes.commit import Committer
from tune_sync.homes.store import LocalStore
from tune_sync.layout import STAGING_DIR
from tune_sync.manifest import FileEntry, Seal
from tune_sync.run import Run
from tune_sync.testing.memory_bucket import MemoryBucket

TIMEOUT_S = 60.0


class Quota(MemoryBucket):
    """Takes nothing while it is full; deletes all the same. A lease is put again and again."""

    error: Exception | None = None

    def put(
        self, key: str, data: bytes | memoryview, *, create_only: bool = False, if_match: str = ""
    ) -> str:
        if self.error is not None:
            raise self.error
        return super().put(key, data, create_only=create_only, if_match=if_match)


class MemorySite(BucketSite):
    """The site of a bucket in memory."""

    def __init__(self, bucket: MemoryBucket) -> None:
        super().__init__(BucketUrl("s3", "bucket/exp"))
        self._bucket = bucket

    def check(self) -> None:
        pass


@pytest.fixture
def bucket() -> Quota:
    return Quota()


def start(bucket: Quota, runs: list[Run], on_existing: str = "resume") -> Run:
    runs.append(Run.open(MemorySite(bucket), on_existing, TIMEOUT_S, 1))
    return runs[-1]


def report(committer: BucketCommitter, path: str = "a", rank: int = 0, ranks_count: int = 1) -> str:
    """Put and seal a part; returns its attempt."""
    attempt = committer.begin(CHECKPOINT)
    etag = committer.put_file(CHECKPOINT, attempt, path, b"bytes")
    entry = FileEntry(path, 5, xxhash.xxh3_128_hexdigest(b"bytes"))
    seal = Seal(attempt, rank, 1.0, (entry,), (), ranks_count)
    committer.seal(CHECKPOINT, seal, {path: etag})
    return attempt


@pytest.mark.parametrize("error", [StoreFullError("quota"), StoreUnreachableError("outage")])
def test_what_a_bucket_refuses_to_publish_stays_for_the_next_run(
    bucket: Quota, runs: list[Run], error: Exception
) -> None:
    run = start(bucket, runs)
    attempt = report(run.home.committer)
    bucket.error = error
    run.publish(CHECKPOINT, False, [attempt])
    with pytest.raises(NotStoredError, match=f"{CHECKPOINT}: {error}"):
        run.flush(TIMEOUT_S)
    run.close()
    assert bucket.objects[f"{CHECKPOINT}/a"] == b"bytes"
    bucket.error = None
    again = start(bucket, runs)
    assert [m.checkpoint for m in manifests_of(again.home.committer)] == [CHECKPOINT]


def test_ranks_that_were_placed_are_known_to_the_next_run_once_a_put_is_taken(
    bucket: Quota, runs: list[Run]
) -> None:
    run = start(bucket, runs)
    parts = [report(run.home.committer, name, rank, 2) for rank, name in enumerate("ab")]
    bucket.error = StoreUnreachableError("outage")
    run.publish(CHECKPOINT, False, parts)
    with pytest.raises(NotStoredError):
        run.flush(TIMEOUT_S)
    bucket.error = None  # the outage ends before the run does
    run.close()
    bucket.put("experiment_state-1.json", b'{"trial_data": []}')  # Ray writes one as it begins
    (found,) = manifests_of(start(bucket, runs).home.committer)
    assert {file.path for file in found.files} == {"a", "b"}


def test_a_sweep_finishes_what_was_placed(bucket: Quota, runs: list[Run]) -> None:
    run = start(bucket, runs)
    committer = run.home.committer
    committer.place(CHECKPOINT, attempts=[report(committer)])
    bucket.error = StoreFullError("quota")
    with pytest.raises(StoreFullError):
        committer.sweep()
    assert f"{CHECKPOINT}/a" in bucket.objects
    bucket.error = None
    assert committer.sweep().completed == (CHECKPOINT,)
    assert committer.manifest(CHECKPOINT) is not None


def test_a_sweep_drops_what_was_never_placed(bucket: Quota, runs: list[Run]) -> None:
    run = start(bucket, runs)
    report(run.home.committer)
    run.close()
    assert not [key for key in bucket.objects if CHECKPOINT in key]


@pytest.mark.parametrize(
    "error",
    [
        StoreFullError("no room"), OSError(errno.EIO, "Input/output error"),
        NotWholeError("seen late"), DamagedError("a seal"), RanksDisagreeError("ranks disagree"),
    ],
)  # fmt: skip
def test_what_could_not_be_placed_outlives_its_trial_and_its_run(
    tmp_path: Path, runs: list[Run], error: Exception
) -> None:
    runs.append(Run.open(tmp_path, "resume", TIMEOUT_S, 1))
    sealed(runs[0].home.committer, {"a": b"1"}, ranks_count=1)
    runs[0].refused[f"{tmp_path}/{CHECKPOINT}"] = error
    runs[0].discard_staged("trial")  # Ray tells that the trial has ended
    runs[0].publisher.settle(TIMEOUT_S)
    runs[0].close()
    is_kept = not isinstance(error, RanksDisagreeError)
    assert (tmp_path / STAGING_DIR).exists() == is_kept
    runs.append(Run.open(tmp_path, "resume", TIMEOUT_S, 1))
    assert (Committer(LocalStore(tmp_path)).manifest(CHECKPOINT) is not None) == is_kept
