"""State in a bucket: not put too often, the newest in the end, and told of when it is there."""

from __future__ import annotations

import errno
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.staged import CHECKPOINT
from tests.unit.test_node_sender import report
from tune_sync.behind.held_file import HeldFile
from tune_sync.errors import NotStoredError, StoreError, StoreFullError, StoreUnreachableError
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.homes.home import LocalHome
from tune_sync.homes.state_records import Corrections
from tune_sync.layout import INCOMING_DIR, Kind, manifest_key
from tune_sync.publisher import Publisher
from tune_sync.sent_files import SentFiles
from tune_sync.testing.memory_bucket import MemoryBucket
from tune_sync.transfer.streams import FileStream, StateStream
from tune_sync.versions import Versions

KEY = "experiment_state-2026.json"
TIMEOUT_S = 30.0


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
    run: Any = SimpleNamespace(
        home=home, publisher=told, state_written=told.state_written, corrections=Corrections(),
        begun=True, closed=False,
    )  # fmt: skip
    start_s = time.monotonic()
    for number in range(60):
        stream = FileStream(home, KEY, lambda s: files.commit(s, KEY, Kind.STATE, run, TIMEOUT_S))
        stream.write(b"x" * (9 << 20) if number == 30 else str(number).encode())
        stream.close()
        time.sleep(0.02)
    loop_s = time.monotonic() - start_s
    assert loop_s < 40
    files.flush(TIMEOUT_S)
    assert bucket.objects[KEY] == b"59"
    gaps = [b - a for a, b in zip(bucket.put_s, bucket.put_s[1:], strict=False)]
    assert 1 <= len(gaps) <= loop_s + 3 and min(gaps) >= 1.0
    assert run.publisher.states_count == len(bucket.put_s)
    assert not home._incoming and not files.unstored
    run.publisher.close(TIMEOUT_S)


class HungBucket(MemoryBucket):
    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.taken: list[str] = []

    def put(self, key: str, data: bytes, **options: Any) -> str:
        self.answers.wait()
        self.taken.append(key)
        return super().put(key, data, **options)


def test_in_training_nobody_waits_for_state_that_a_bucket_does_not_take() -> None:
    """Not for the first of a while either, which could be put at once."""
    bucket, files, copied = HungBucket(), SentFiles(), threading.Event()
    home = BucketHome(bucket)
    told = Told(home.committer)
    run: Any = SimpleNamespace(
        home=home, publisher=told, state_written=told.state_written, corrections=Corrections(),
        begun=True, closed=False,
    )  # fmt: skip

    def copy() -> None:
        stream = FileStream(home, KEY, lambda s: files.commit(s, KEY, Kind.STATE, run, TIMEOUT_S))
        stream.write(b"state")
        stream.close()
        copied.set()

    threading.Thread(target=copy, daemon=True).start()
    is_copied = copied.wait(TIMEOUT_S)
    bucket.answers.set()
    assert is_copied
    files.flush(TIMEOUT_S)
    assert bucket.objects[KEY] == b"state"
    run.publisher.close(TIMEOUT_S)


def test_in_training_nobody_waits_for_manifests_and_state_comes_after_them() -> None:
    bucket, files, copied = HungBucket(), SentFiles(), threading.Event()
    bucket.answers.set()
    home = BucketHome(bucket)
    told = Told(home.committer)
    run: Any = SimpleNamespace(
        home=home, publisher=told, state_written=told.state_written, corrections=Corrections(),
        begun=True, closed=False,
    )  # fmt: skip
    upload = report(home, CHECKPOINT)
    placed = home.committer.place(CHECKPOINT, attempts=[upload.attempt])
    bucket.answers.clear()
    told.record_later(placed.manifest)

    def copy() -> None:
        stream = FileStream(home, KEY, lambda s: files.commit(s, KEY, Kind.STATE, run, TIMEOUT_S))
        stream.write(b"state")
        stream.close()
        copied.set()

    threading.Thread(target=copy, daemon=True).start()
    is_copied = copied.wait(TIMEOUT_S / 2)
    bucket.answers.set()
    assert is_copied
    files.flush(TIMEOUT_S)
    taken = bucket.taken
    assert taken.index(manifest_key(CHECKPOINT)) < taken.index(KEY)
    assert not files.unstored
    told.close(TIMEOUT_S)


def test_nothing_stays_of_large_state_whose_manifests_cannot_be_put_before_it() -> None:
    home, files = BucketHome(MemoryBucket()), SentFiles()

    def drain(timeout_s: float, version: int) -> None:
        raise NotStoredError("t/checkpoint_000000: the bucket takes no manifest")

    run: Any = SimpleNamespace(
        home=home, publisher=SimpleNamespace(drain=drain), begun=True, closed=False
    )
    stream = FileStream(home, KEY, lambda s: files.commit(s, KEY, Kind.STATE, run, TIMEOUT_S))
    stream.write(b"x" * (9 << 20))
    assert home._incoming
    stream.close()
    files.flush(TIMEOUT_S)
    assert "takes no manifest" in files.unstored[KEY]
    assert not home._incoming


@pytest.mark.parametrize("is_held", [False, True])
def test_a_version_that_ray_changed_while_it_was_copied_does_not_replace_a_whole_one(
    is_held: bool,
) -> None:
    """Ray writes the file anew while a thread of its copies the version before."""
    bucket, files = MemoryBucket(), SentFiles()
    home = BucketHome(bucket)
    home.rewrite_s = 0.0
    offered: list[Callable[[], None]] = []
    behind = SimpleNamespace(offer=lambda key, write, **_: offered.append(write), edit=bytes)
    told = Told(home.committer)
    run: Any = SimpleNamespace(
        home=home, publisher=told, state_written=told.state_written, behind=behind,
        corrections=Corrections(), versions=Versions(), begun=False, closed=False, saved_trials=(),
    )  # fmt: skip
    for body in (b'{"a": 1}', b"", b'{"a"', b'{"a": 2}', b'{"a": 3'):
        if is_held:
            stream: Any = files.held(KEY, Kind.STATE, run)
        else:
            stream = StateStream(
                home, KEY, lambda s: files.commit(s, KEY, Kind.STATE, run, TIMEOUT_S)
            )
        stream.write(body)
        stream.close()
    for write in offered:
        write()
    assert bucket.objects[KEY] == b'{"a": 2}'
    assert not home._incoming and not files.unstored
    assert told.states_count == (0 if is_held else 2)
    told.close(TIMEOUT_S)


def test_what_a_trial_named_like_a_state_logs_is_stored(tmp_path: Path) -> None:
    files, home = SentFiles(), LocalHome(tmp_path)
    run: Any = SimpleNamespace(
        home=home, behind=None, versions=Versions(), begun=False, closed=False, saved_trials=(),
        corrections=Corrections(), state_written=lambda: pytest.fail("it is no state"),
    )  # fmt: skip
    for name in ("experiment_state_a1b2", "basic-variant-state-1"):
        key = f"{name}/progress.csv"
        stream = files.stream(home, key, Kind.TRIAL_FILE, run, TIMEOUT_S)
        stream.write(b"a,b")
        stream.close()
        assert (tmp_path / key).read_bytes() == b"a,b"


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


class Away(MemoryBucket):
    """A bucket that does not say who has the lease."""

    def get(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        raise StoreUnreachableError("away")


class Full(LocalHome):
    """A disk that has no room for another name."""

    def commit_file(self, incoming: str, key: str, durable: bool) -> None:
        raise StoreFullError(errno.ENOSPC, "full")


def test_nothing_stays_of_tries_to_write_state_that_failed(tmp_path: Path) -> None:
    bucket, disk = BucketHome(Away(), "me"), Full(tmp_path)
    file = HeldFile(lambda file: None)
    file.write(b"state")
    for home in (bucket, disk, bucket, disk):
        with pytest.raises(StoreError):
            file.send(home, KEY, True)
    assert not bucket._incoming
    assert list((tmp_path / INCOMING_DIR).iterdir()) == []


def test_the_error_of_many_files_stays_short_and_says_how_many() -> None:
    files = SentFiles()
    for number in range(300):
        files.unstored[f"trial_{number}/result.json"] = "no space left; make room"
    with pytest.raises(NotStoredError) as told:
        files.check(dict)
    text = str(told.value)
    assert text.startswith("trial_0/result.json: no space left; make room; trial_1/")
    assert text.endswith("; and 295 more files, which the logs name")
    assert text.count("make room") == 5


def send(files: SentFiles, home: LocalHome, body: bytes) -> None:
    """As a trial does, which is no driver."""
    stream = files.stream(home, KEY, Kind.TRIAL_FILE, None, TIMEOUT_S)
    stream.write(body)
    stream.close()


def test_a_file_that_is_stored_after_all_is_told_once_whichever_process_failed(
    tmp_path: Path,
) -> None:
    told: dict[str, str | None] = {}
    calls = []

    def tell(key: str, reason: str | None) -> None:
        calls.append(key)
        told[key] = reason

    home = LocalHome(tmp_path)
    first = SentFiles(tell, ask=lambda: [key for key, why in told.items() if why])
    with pytest.raises(StoreFullError):
        send(first, Full(tmp_path), b"1")
    assert "full" in str(told[KEY])
    send(first, home, b"1")
    assert told == {KEY: None}
    send(first, home, b"2")
    assert len(calls) == 2
    with pytest.raises(StoreFullError):
        send(first, Full(tmp_path), b"3")
    later = SentFiles(tell, ask=lambda: [key for key, why in told.items() if why])
    send(later, home, b"3")
    assert told == {KEY: None} and len(calls) == 4


def test_what_another_process_told_since_is_asked_for_after_a_change_of_process(
    tmp_path: Path,
) -> None:
    told: dict[str, str | None] = {}
    files = SentFiles(told.__setitem__, ask=lambda: [key for key, why in told.items() if why])
    home = LocalHome(tmp_path)
    send(files, home, b"1")
    told[KEY] = "another process had no room"
    send(files, home, b"2")
    assert told[KEY]
    files.begin_anew()
    send(files, home, b"2")
    assert told == {KEY: None}


def test_a_file_is_stored_whatever_the_home_agent_answers(tmp_path: Path) -> None:
    asked = []

    def ask() -> list[str]:
        asked.append(KEY)
        raise RuntimeError("Ray is going down")

    files, home = SentFiles(ask=ask), LocalHome(tmp_path)
    send(files, home, b"1")
    send(files, home, b"2")
    assert (tmp_path / KEY).read_bytes() == b"2"
    assert not files.unstored
    assert len(asked) == 1
