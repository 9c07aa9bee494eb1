"""A sync that hangs: who waits is told in time, and it changes nothing once it goes on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.staged import CHECKPOINT
from tune_sync import CallbackSyncer, RunConfig
from tune_sync.errors import SyncTimeoutError
from tune_sync.homes import kinds
from tune_sync.homes.digests import digest_of
from tune_sync.homes.lease import Holder
from tune_sync.homes.shared import timed
from tune_sync.homes.shared.home import SharedHome
from tune_sync.homes.shared.timed import TimedSharedHome
from tune_sync.layout import LEASE_KEY, staged_key
from tune_sync.manifest import FileEntry, Seal
from tune_sync.syncers.base import BackgroundSyncer
from tune_sync.syncers.cloud import CloudSyncer
from tune_sync.syncers.object_store import ObjectStoreSyncer
from tune_sync.syncers.shared_directory import SharedDirectorySyncer

LIMIT_S, WITHIN_S = 0.3, 30.0
MANY_COUNT = 3000


def until_threads_are(count: int) -> None:
    end_s = time.monotonic() + WITHIN_S
    while threading.active_count() > count and time.monotonic() < end_s:
        time.sleep(0.01)
    assert threading.active_count() <= count


def send(home: TimedSharedHome, attempt: str, data: bytes) -> None:
    key = staged_key(CHECKPOINT, attempt)
    home.write(f"{key}/model", 0, data)
    entry = FileEntry("model", len(data), digest_of(data))
    home.seal(CHECKPOINT, Seal(attempt, 0, 1.0, (entry,), ()))


def test_a_shared_directory_that_hangs_is_told_in_time_and_the_next_attempt_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opens a pipe to write waits, in the kernel, until somebody reads."""
    root = tmp_path / "x"
    driver = SharedHome(root)
    driver.store.make_dir(".tune_sync")
    hurried, home = (TimedSharedHome(root, "", 1, "node1", s) for s in (LIMIT_S, WITHIN_S))
    monkeypatch.setattr(timed, "DISCARD_S", WITHIN_S)
    threads_count = threading.active_count()
    hung = home.begin(CHECKPOINT)
    pipe = root / staged_key(CHECKPOINT, hung) / "model"
    os.mkfifo(pipe)
    os.link(pipe, tmp_path / "pipe")
    start_s = time.monotonic()
    with pytest.raises(SyncTimeoutError, match=r"not answer on node1 after 0 s \(sync_timeout\)"):
        send(hurried, hung, b"old")
    assert LIMIT_S <= time.monotonic() - start_s < LIMIT_S + WITHIN_S
    home.discard_attempt(CHECKPOINT, hung)
    attempt = home.begin(CHECKPOINT)
    send(home, attempt, b"newer")
    placed = driver.committer.place(CHECKPOINT, attempts=[attempt])
    driver.committer.record(placed.manifest)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    until_threads_are(threads_count)
    os.close(reader)
    assert (root / CHECKPOINT / "model").read_bytes() == b"newer"
    assert not list((root / ".tune_sync/staging").rglob("model"))
    assert not list((root / ".tune_sync/trash").iterdir())


def test_what_is_waited_for_shorter_than_sync_timeout_says_how_long_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = tmp_path / LEASE_KEY
    lease.parent.mkdir()
    lease.write_text(Holder.here("me", time.time()).to_json())
    home = TimedSharedHome(tmp_path, "me", 1, "node1", 1800.0)
    attempt = home.begin(CHECKPOINT)
    read, answers = kinds.read_file, threading.Event()

    def hung(path: Path) -> bytes:
        assert answers.wait(WITHIN_S)
        return read(path)

    monkeypatch.setattr(kinds, "read_file", hung)
    with pytest.raises(SyncTimeoutError, match="does not answer on node1 after 1 s: look at"):
        home.discard_attempt(CHECKPOINT, attempt)
    answers.set()


def test_an_error_of_a_shared_directory_is_what_it_is(tmp_path: Path) -> None:
    home = TimedSharedHome(tmp_path, "", 1, "node1", WITHIN_S)
    with pytest.raises(FileNotFoundError):
        home.write(f"{staged_key(CHECKPOINT, '0' * 32)}/model", 0, b"bytes")


@pytest.fixture(params=["shared", "bucket", "object store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[BackgroundSyncer, str]]:
    if request.param == "shared":
        yield SharedDirectorySyncer(), str(tmp_path / "remote")
    elif request.param == "bucket":
        yield CloudSyncer(), f"memory://hung-{os.urandom(4).hex()}"
    else:
        config = RunConfig(name="exp", storage_path=str(tmp_path / "home"))
        run = config.storage_filesystem.handler.start()
        remote = f"{config.storage_path}/exp/trial/plots"
        yield ObjectStoreSyncer(config.storage_filesystem), remote
        run.close()


@pytest.fixture
def given_up(
    place: tuple[BackgroundSyncer, str], monkeypatch: pytest.MonkeyPatch
) -> threading.Event:
    """A command goes on from where it first asks once this is set, or it might be over before."""
    check, event = place[0].check, threading.Event()

    def check_late(*of: threading.Thread) -> None:
        event.wait(WITHIN_S)
        check(*of)

    monkeypatch.setattr(place[0], "check", check_late)
    return event


def many(top: Path) -> str:
    top.mkdir()
    for number in range(MANY_COUNT):
        (top / f"{number:04d}").touch()
    return str(top)


def give_up(syncer: BackgroundSyncer, given_up: threading.Event, start: Callable[[], bool]) -> None:
    given_up.clear()
    syncer.sync_timeout = 0.0
    start()
    with pytest.raises(SyncTimeoutError):
        syncer.wait()
    given_up.set()
    syncer.sync_timeout = WITHIN_S


def names_at(syncer: BackgroundSyncer, remote: str, back: Path) -> list[str]:
    """What is there, once the command before has ended."""
    syncer.sync_down(remote, str(back))
    syncer.wait()
    return os.listdir(back)


def test_what_was_given_up_stops_and_the_next_one_proceeds(
    place: tuple[BackgroundSyncer, str], given_up: threading.Event, tmp_path: Path
) -> None:
    syncer, remote = place
    local = many(tmp_path / "local")
    give_up(syncer, given_up, lambda: syncer.sync_up(local, remote))
    few = tmp_path / "few"
    few.mkdir()
    (few / "new").touch()
    syncer.sync_up(str(few), remote)  # once what was given up has ended
    syncer.wait()
    back = names_at(syncer, remote, tmp_path / "back")
    assert "new" in back
    assert len(back) < MANY_COUNT


def filled(
    place: tuple[BackgroundSyncer, str], given_up: threading.Event, tmp_path: Path
) -> tuple[BackgroundSyncer, str]:
    """Many files are there, and nothing was given up yet."""
    syncer, remote = place
    given_up.set()
    syncer.sync_up(many(tmp_path / "local"), remote)
    syncer.wait()
    return place


def test_a_fetch_that_was_given_up_writes_no_more(
    place: tuple[BackgroundSyncer, str], given_up: threading.Event, tmp_path: Path
) -> None:
    syncer, remote = filled(place, given_up, tmp_path)
    give_up(syncer, given_up, lambda: syncer.sync_down(remote, str(tmp_path / "down")))
    syncer.close()
    assert not [path for path in (tmp_path / "down").rglob("*") if path.is_file()]
    assert len(names_at(syncer, remote, tmp_path / "down")) == MANY_COUNT


def test_a_delete_that_was_given_up_removes_no_more(
    place: tuple[BackgroundSyncer, str], given_up: threading.Event, tmp_path: Path
) -> None:
    syncer, remote = filled(place, given_up, tmp_path)
    give_up(syncer, given_up, lambda: syncer.delete(remote))
    assert len(names_at(syncer, remote, tmp_path / "back")) == MANY_COUNT
    syncer.delete(remote)
    syncer.delete(remote)  # of what is not there
    syncer.wait()


def test_a_function_of_a_users_own_may_ask_whether_it_was_given_up(tmp_path: Path) -> None:
    sent: list[str] = []
    go_on = threading.Event()

    def upload(source: str, target: str) -> None:
        go_on.wait(WITHIN_S)
        syncer.check()
        sent.append(target)

    syncer = CallbackSyncer(upload, upload, print, sync_timeout=0.1)
    syncer.sync_up(str(tmp_path), "old")
    with pytest.raises(SyncTimeoutError, match=r"^upload to old is not over after"):
        syncer.wait()
    go_on.set()
    syncer.sync_timeout = WITHIN_S
    syncer.sync_up(str(tmp_path), "newer")
    syncer.wait()
    assert sent == ["newer"]
