"""A restore from a bucket takes a few listings, however many checkpoints and files there are."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from tune_sync.buckets.bucket import ObjectInfo
from tune_sync.errors import DamagedError
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.homes.digests import digest_of
from tune_sync.homes.recorded import is_whole, recorded_numbers
from tune_sync.layout import manifest_key
from tune_sync.manifest import FileEntry, Manifest, to_json
from tune_sync.testing.memory_bucket import MemoryBucket

TRIALS_COUNT, CHECKPOINTS_COUNT, FILES_COUNT = 20, 50, 20
PAGE_COUNT = 1000
SOON_S = 60.0


class SlowBucket(MemoryBucket):
    """Each request, and each page of a listing, takes its time."""

    def __init__(self, latency_s: float) -> None:
        super().__init__()
        self.latency_s = latency_s
        self.requests_count = 0
        self._count_lock = threading.Lock()

    def info(self, key: str) -> ObjectInfo | None:
        self._wait(1)
        return super().info(key)

    def list(self, prefix: str) -> list[ObjectInfo]:
        found = super().list(prefix)
        self._wait(1 + len(found) // PAGE_COUNT)
        return found

    def list_dir(self, prefix: str) -> tuple[list[ObjectInfo], list[str]]:
        self._wait(1)
        found = MemoryBucket.list(self, prefix)
        start = f"{prefix}/" if prefix else ""
        inner = {o.key.removeprefix(start).partition("/")[0] for o in found}
        files = [o for o in found if "/" not in o.key.removeprefix(start)]
        return files, sorted({start + i for i in inner} - {o.key for o in files})

    def get(self, key: str, *args: Any) -> bytes:
        self._wait(1)
        return super().get(key, *args)

    def delete(self, keys: Sequence[str]) -> None:
        self._wait(bool(keys))
        super().delete(keys)

    def _wait(self, requests_count: int) -> None:
        with self._count_lock:
            self.requests_count += requests_count
        time.sleep(self.latency_s * requests_count)


def fill(bucket: MemoryBucket, trials_count: int, checkpoints_count: int) -> None:
    files = tuple(FileEntry(f"f{n:02d}", 1, digest_of(b"x")) for n in range(FILES_COUNT))
    for trial in range(trials_count):
        for number in range(checkpoints_count):
            checkpoint = f"trial_{trial}/checkpoint_{number:06d}"
            for file in files:
                bucket.objects[f"{checkpoint}/{file.path}"] = b"x"
            manifest = Manifest(checkpoint, "owner", 1.0, files)
            bucket.objects[manifest_key(checkpoint)] = to_json(manifest)


def look_at_all(home: BucketHome) -> int:
    """What a restore asks of each checkpoint, at most."""
    home.committer.recover()
    there = home.snapshot()
    numbers = recorded_numbers(there)
    keys = [f"{t}/checkpoint_{n:06d}" for t, found in numbers.items() for n in found]
    manifests = [there.manifest(key) for key in keys]
    return sum(m is not None and is_whole(there, m) for m in manifests)


def test_a_thousand_checkpoints_of_twenty_files_take_seconds() -> None:
    bucket = SlowBucket(0.02)
    fill(bucket, TRIALS_COUNT, CHECKPOINTS_COUNT)
    start_s = time.monotonic()
    assert look_at_all(BucketHome(bucket)) == TRIALS_COUNT * CHECKPOINTS_COUNT
    assert time.monotonic() - start_s < SOON_S
    assert bucket.requests_count < TRIALS_COUNT * (CHECKPOINTS_COUNT + 10)


def test_it_answers_as_the_bucket_does() -> None:
    bucket = MemoryBucket()
    fill(bucket, 2, 2)
    bucket.put("experiment_state-1.json", b"{}")
    home = BucketHome(bucket)
    there = home.snapshot()
    for key in ("", "trial_0", "trial_1/checkpoint_000001"):
        assert [e.key for e in there.list(key)] == [e.key for e in home.store.list(key)]
    for key in ("trial_0", "trial_0/checkpoint_000001", "trial_0/checkpoint_000000/f01", "none"):
        assert there.info(key) == home.store.info(key)
    assert there.list("none") == []


def test_what_is_missing_or_damaged_is_told_of_that_checkpoint_alone() -> None:
    bucket = MemoryBucket()
    fill(bucket, 1, 3)
    bucket.delete(["trial_0/checkpoint_000001/f07"])
    bucket.put(manifest_key("trial_0/checkpoint_000002"), b"{")
    there = BucketHome(bucket).snapshot()
    first, second = (there.manifest(f"trial_0/checkpoint_00000{n}") for n in (0, 1))
    assert first is not None and is_whole(there, first)
    assert second is not None and not is_whole(there, second)
    try:
        there.manifest("trial_0/checkpoint_000002")
    except DamagedError:
        return
    raise AssertionError("it was read")


def test_a_checkpoint_of_directories_alone_is_there() -> None:
    bucket = MemoryBucket()
    for name, inner in (("000000", ("a", "a/b")), ("000001", ())):
        manifest = Manifest(f"trial/checkpoint_{name}", "owner", 1.0, (), directories=inner)
        bucket.objects[manifest_key(manifest.checkpoint)] = to_json(manifest)
    there = BucketHome(bucket).snapshot()
    assert recorded_numbers(there) == {"trial": {0, 1}}
    found = {entry.key for entry in there.list("trial")}
    assert found == {"trial/checkpoint_000000", "trial/checkpoint_000001"}
    for key in found:
        info, manifest = there.info(key), there.manifest(key)
        assert info is not None and info.is_dir
        assert manifest is not None and is_whole(there, manifest)
