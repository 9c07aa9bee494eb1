"""Ray copies its staging directory at every snapshot; with `num_to_keep` its loop waits for that.

So the copy waits for nothing that is on its way to where results go.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from tests.unit.test_run_left import Silent
from tune_sync import RunConfig, SyncConfig
from tune_sync.errors import NotStoredError, StoreError
from tune_sync.filesystem import SyncHandler
from tune_sync.homes.shared.home import SharedHome
from tune_sync.homes.shared.site import SharedSite
from tune_sync.paced import Paced
from tune_sync.run import Run
from tune_sync.run_filesystem import RunFileSystem
from tune_sync.transfer import chunks
from tune_sync.transfer.streams import FileStream

STATE, SEARCH = "experiment_state-2026.json", "basic-variant-state-2026.json"
TIMEOUT_S = 30.0


class HungHome(SharedHome):
    """A shared directory that takes nothing while its server is away."""

    answers: threading.Event
    takes_s = 0.0

    def _wait(self) -> None:
        assert self.answers.wait(TIMEOUT_S)

    def make_dir(self, key: str) -> None:
        self._wait()
        super().make_dir(key)

    def begin_file(self) -> str:
        self._wait()
        return super().begin_file()

    def commit_file(self, incoming: str, key: str, durable: bool) -> None:
        self._wait()
        time.sleep(self.takes_s)
        super().commit_file(incoming, key, durable)


class HungSite(SharedSite):
    """Where that is."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.answers = threading.Event()
        self.answers.set()

    def home(self, owner: str, checkpoint_depth: int) -> HungHome:
        home = HungHome(self.root, owner, checkpoint_depth, leased_root=self._leased_root)
        home.answers = self.answers
        return home


class Driver:
    """One whose training has begun, and what Ray keeps of it in a directory of its own."""

    def __init__(self, base: Path, *, is_behind: bool) -> None:
        self.root, self.staging = base / "far" / "x", base / "staging"
        sync = SyncConfig(upload_dir=base / "far")
        config = RunConfig(name="x", sync_config=sync)
        self.handler: SyncHandler = config.storage_filesystem.handler
        self.site = HungSite(self.root)
        self.handler.run = self.run = Run.open(self.site, "error", TIMEOUT_S, 1)
        self.filesystem = RunFileSystem(self.handler)
        if is_behind:
            self.handler.files.learn(self.run)
            self.run.write_behind(Silent())
        self.run.begun = True  # as `begin`, which is for who is called by Ray

    def save(self, number: int, trials_count: int = 2) -> None:
        """Make a version, as the control loop does, and copy all, as a thread of Ray does."""
        for trial in range(trials_count):
            (self.staging / f"trial_{trial}").mkdir(parents=True, exist_ok=True)
            (self.staging / f"trial_{trial}" / "result.json").write_text(f"{number}\n")
            (self.staging / f"trial_{trial}" / "params.json").write_text("{}")
        self.version(number)
        self.filesystem.create_dir(str(self.root))
        pafs.copy_files(str(self.staging), str(self.root), destination_filesystem=self.filesystem)

    def version(self, number: int) -> None:
        """Write what tells of trials, and ask for the state of callbacks."""
        for name in (STATE, SEARCH):
            (self.staging / "new").write_text(str(number))
            (self.staging / "new").rename(self.staging / name)
        self.handler.files.made(self.run, str(self.staging))

    def flush(self) -> None:
        """As at the end of a run."""
        self.handler.files.flush(TIMEOUT_S)
        self.run.flush(TIMEOUT_S)
        self.handler.files.check(dict)

    def is_copied(self) -> bool:
        """Whether what is there is what Ray has."""
        ours = {path.relative_to(self.staging): path for path in files_of(self.staging)}
        return all(
            (self.root / name).is_file() and (self.root / name).read_bytes() == path.read_bytes()
            for name, path in ours.items()
        )


def files_of(directory: Path) -> Iterator[Path]:
    for base, _, names in os.walk(directory):
        yield from (Path(posixpath.join(base, name)) for name in names)


@pytest.fixture(params=[False, True], ids=["stored", "staged"])
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path, is_behind=request.param)
    yield made
    made.site.answers.set()
    made.run.close()


def in_time(do: Callable[[], Any]) -> bool:
    """Whether it comes back while nothing answers."""
    done = threading.Event()

    def run() -> None:
        do()
        done.set()

    threading.Thread(target=run, daemon=True).start()
    return done.wait(TIMEOUT_S / 3)


def test_a_snapshot_is_copied_while_the_place_does_not_answer_and_the_newest_is_there_at_the_end(
    driver: Driver,
) -> None:
    driver.save(0)
    driver.site.answers.clear()
    is_back = in_time(lambda: [driver.save(number, trials_count=3) for number in range(1, 6)])
    driver.site.answers.set()
    assert is_back
    driver.flush()
    assert driver.is_copied()
    assert not list((driver.root / ".tune_sync/incoming").glob("*"))


def test_state_that_takes_long_to_write_is_written_less_often_and_the_newest_last(
    driver: Driver,
) -> None:
    home: Any = driver.run.home
    home.takes_s = 0.2
    began_s = time.monotonic()
    for number in range(20):
        driver.save(number)
    took_s = time.monotonic() - began_s
    driver.flush()
    assert took_s < 20 * home.takes_s / 2, "each was waited for"
    assert driver.is_copied()


def test_directories_without_files_are_made_too(driver: Driver) -> None:
    (driver.staging / "trial_9" / "empty").mkdir(parents=True)
    driver.save(0)
    driver.flush()
    assert (driver.root / "trial_9" / "empty").is_dir()


def test_what_somebody_removed_is_there_again_once_it_has_changed(driver: Driver) -> None:
    driver.save(0)
    driver.flush()
    shutil.rmtree(driver.root / "trial_1")
    driver.save(1)
    driver.flush()
    assert (driver.root / "trial_1" / "result.json").read_text() == "1\n"


def write(driver: Driver, name: str, body: bytes) -> None:
    stream = driver.handler.open_output_stream(str(driver.root / name), None)
    stream.write(body)
    with contextlib.suppress(OSError, RuntimeError):  # pyarrow drops it
        stream.close()


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """A driver that sends state in chunks of 1 kB, as if it had megabytes."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1 << 10)
    made = Driver(tmp_path, is_behind=False)
    made.save(0)
    made.flush()
    yield made
    made.site.answers.set()
    made.run.close()


def state_of(letter: bytes) -> bytes:
    return b'"' + 2500 * letter + b'"'


def test_a_large_state_is_whole_though_what_it_replaces_cannot_be_removed(
    plain: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(home: SharedHome, incoming: str) -> None:
        raise OSError(116, "Stale file handle")

    may_go, put = threading.Event(), HungHome.commit_file

    def slow(home: HungHome, incoming: str, key: str, durable: bool) -> None:
        may_go.wait(TIMEOUT_S)
        put(home, incoming, key, durable)

    monkeypatch.setattr(HungHome, "commit_file", slow)
    monkeypatch.setattr(HungHome, "drop_file", fail)
    write(plain, STATE, state_of(b"a"))
    while plain.handler.files._paced._waiting:  # type: ignore[union-attr]
        time.sleep(0.001)
    write(plain, STATE, state_of(b"b"))
    write(plain, STATE, state_of(b"c"))
    may_go.set()
    plain.flush()
    assert (plain.root / STATE).read_bytes() == state_of(b"c")


def test_a_large_state_that_finds_no_thread_is_not_stored_later_without_its_beginning(
    plain: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    write(plain, STATE, state_of(b"a"))
    plain.flush()
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        write(plain, STATE, state_of(b"b"))
    write(plain, "trial_0/other.json", b"1")
    with pytest.raises(NotStoredError, match="thread"):
        plain.flush()
    assert (plain.root / STATE).read_bytes() == state_of(b"a")
    write(plain, STATE, state_of(b"c"))
    plain.flush()
    assert (plain.root / STATE).read_bytes() == state_of(b"c")


def test_what_was_given_up_is_never_put_in_its_place(plain: Driver) -> None:
    stream = FileStream(plain.run.home, STATE, lambda stream: None)
    stream.write(state_of(b"b"))
    stream.drop()
    with pytest.raises(StoreError, match="given up"):
        stream.commit(True, unless=None)
    assert (plain.root / STATE).read_text() == "0"


def test_a_search_that_waited_for_its_state_is_not_put_after_a_newer_one(
    plain: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, newer_is_closed = plain.handler.files, threading.Event()
    do = Paced.do

    def slow(paced: Paced, name: str, *args: Any, **how: Any) -> None:
        if name == SEARCH and threading.current_thread().name.startswith("tune_sync-paced"):
            newer_is_closed.wait(0.5)  # who has the older one is held up just before it is put
        do(paced, name, *args, **how)

    monkeypatch.setattr(Paced, "do", slow)
    plain.version(1)
    write(plain, SEARCH, b"1")  # waits for a state of that version, or of a later one
    assert list(files._order._early) == [SEARCH]
    plain.version(2)
    newer = plain.handler.open_output_stream(str(plain.root / SEARCH), None)
    newer.write(b"2")
    write(plain, STATE, b"2")
    while files._order._early:
        time.sleep(0.001)
    newer.close()
    newer_is_closed.set()
    plain.flush()
    assert (plain.root / SEARCH).read_text() == "2"


def test_a_second_run_with_the_same_settings_makes_its_directories_anew(driver: Driver) -> None:
    (driver.staging / "trial_9" / "empty").mkdir(parents=True)
    driver.save(0)
    driver.flush()
    shutil.rmtree(driver.root / "trial_9")
    driver.handler.files.begin_anew()  # as each run does
    driver.save(1)
    driver.flush()
    assert (driver.root / "trial_9" / "empty").is_dir()


def test_what_a_run_could_not_store_is_no_error_of_the_next_with_the_same_settings(
    plain: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(home: HungHome, incoming: str, key: str, durable: bool) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(HungHome, "commit_file", fail)
        write(plain, "trial_0/events", b"1")
        with pytest.raises(NotStoredError, match="trial_0/events"):
            plain.flush()
    plain.run.close()
    plain.handler.run = plain.run = Run.open(plain.site, "move_aside", TIMEOUT_S, 1)
    plain.handler.files.begin_anew()
    plain.run.begun = True
    plain.save(1, trials_count=0)
    plain.flush()


def test_an_unchanged_large_file_is_stored_though_its_copy_cannot_be_removed(
    plain: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(home: SharedHome, incoming: str) -> None:
        raise OSError(116, "Stale file handle")

    write(plain, "trial_0/plots.png", state_of(b"a"))
    plain.flush()
    monkeypatch.setattr(HungHome, "drop_file", fail)
    write(plain, "trial_0/plots.png", state_of(b"a"))
    plain.flush()
