"""A process that makes many runs keeps nothing of those that are over and that nobody holds."""

from __future__ import annotations

import gc
import pickle
import threading
import time
from pathlib import Path

from tune_sync import RunConfig, SyncConfig, storage_options
from tune_sync.filesystem import _HANDLERS
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.testing.memory_bucket import MemoryBucket

SECRET = {"key": "me", "secret": "of mine"}
TIMEOUT_S = 60.0


def test_a_run_that_is_over_is_forgotten_with_all_that_it_held(tmp_path: Path) -> None:
    config = RunConfig(name="x", storage_path=str(tmp_path))
    handler = config.storage_filesystem.handler
    key = handler.spec.key
    handler.start().close()
    assert pickle.loads(pickle.dumps(config.storage_filesystem)).handler is handler
    del handler
    gc.collect()
    assert key in _HANDLERS, "whoever has the filesystem has the run"
    del config
    gc.collect()
    assert key not in _HANDLERS


def test_secrets_are_kept_no_longer_than_what_needs_them() -> None:
    sync = SyncConfig(upload_dir="s3://bucket/path", storage_options=SECRET)
    config = RunConfig(name="x", sync_config=sync)
    key = config.storage_filesystem.handler.spec.key
    assert storage_options.kept(key) == SECRET
    del config
    gc.collect()
    assert storage_options.kept(key) is None


def test_the_threads_of_a_bucket_end_with_it() -> None:
    before = set(threading.enumerate())
    home = BucketHome(MemoryBucket())
    home.bucket.put("x", b"1")
    assert home.read_many(["x"] * 4) == [b"1"] * 4
    assert set(threading.enumerate()) - before
    del home
    gc.collect()
    end_s = time.monotonic() + TIMEOUT_S
    while set(threading.enumerate()) - before and time.monotonic() < end_s:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before
