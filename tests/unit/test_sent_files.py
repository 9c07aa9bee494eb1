"""State in a bucket: not put too often, the newest in the end, and told of when it is there."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

from tune_sync.homes.bucket.home import BucketHome
from tune_sync.layout import Kind
from tune_sync.publisher import Publisher
from tune_sync.sent_files import SentFiles
from tune_sync.testing.memory_bucket import MemoryBucket
from tune_sync.transfer.streams import FileStream

KEY = "experiment_state-2026.json"
TIMEOUT_S = 10.0


class CountingBucket(MemoryBucket):
    def __init__(self) -> None:
        super().__init__()
        self.put_s: list[float] = []

    def put(self, key: str, data: bytes, **options: Any) -> str:
        self.put_s.append(time.monotonic())
        return super().put(key, data, **options)


class Told(Publisher):
    states_count = 0

    def state_written(self) -> None:
        self.states_count += 1
        super().state_written()


def test_state_that_changes_all_the_time_is_put_once_a_second_and_its_last_version_stays() -> None:
    bucket, files = CountingBucket(), SentFiles()
    home = BucketHome(bucket)
    told = Told(home.committer)
    run: Any = SimpleNamespace(home=home, publisher=told, state_written=told.state_written)
    start_s = time.monotonic()
    for number in range(60):
        stream = FileStream(home, KEY, lambda s: files.commit(s, KEY, Kind.STATE, run, TIMEOUT_S))
        stream.write(b"x" * (9 << 20) if number == 30 else str(number).encode())
        stream.close()
        time.sleep(0.02)
    assert time.monotonic() - start_s < 4
    files.flush(TIMEOUT_S)
    assert bucket.objects[KEY] == b"59"
    gaps = [b - a for a, b in zip(bucket.put_s, bucket.put_s[1:], strict=False)]
    assert len(gaps) in (2, 3) and min(gaps) >= 1.0
    assert run.publisher.states_count == len(bucket.put_s)
    assert not home._incoming and not files.unstored
    run.publisher.close(TIMEOUT_S)


def test_what_is_known_of_files_may_change_in_several_threads() -> None:
    bucket, files = MemoryBucket(), SentFiles()
    gone = "experiment_state-0000.json"
    for number in range(2000):
        bucket.put(f"experiment_state-{number:04d}.json", b"{}")
    run: Any = SimpleNamespace(home=BucketHome(bucket))
    done = threading.Event()

    def learn() -> None:
        while not done.is_set():
            files.learn(run)

    files.learn(run)
    learning = threading.Thread(target=learn)
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        learning.start()
        for _ in range(200):
            files.forget(gone)
    finally:
        done.set()
        learning.join()
        sys.setswitchinterval(before_s)
    assert len(files._digests) in (1999, 2000)
