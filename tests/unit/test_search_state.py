"""What tells which trials a search has made is never newer than the state that names them.

A restore would leave out what the one tells to be made, and the other does not name.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.test_run_left import Silent
from tune_sync.behind.behind import Behind
from tune_sync.errors import StoreFullError, StoreUnreachableError
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.homes.home import LocalHome
from tune_sync.homes.state_records import Corrections
from tune_sync.layout import INCOMING_DIR, Kind
from tune_sync.publisher import Publisher
from tune_sync.sent_files import SentFiles
from tune_sync.testing.memory_bucket import MemoryBucket
from tune_sync.versions import Versions

STATE, SEARCH = "experiment_state-2026.json", "basic-variant-state-2026.json"
TIMEOUT_S = 30.0


class Home(LocalHome):
    """Has no room for state while it is full."""

    is_full = False

    def commit_file(self, incoming: str, key: str, durable: bool) -> None:
        if self.is_full and key == STATE:
            raise StoreFullError("no space left")
        super().commit_file(incoming, key, durable)


class Driver:
    """Makes versions of both files, as Ray does, and copies them in whichever order."""

    def __init__(self, root: Path, home: Any = None) -> None:
        self.staging = root / "staging"
        self.staging.mkdir(parents=True)
        root = root / "home"
        root.mkdir()
        self.root, self.home, self.versions = root, home or Home(root), Versions()
        told = Publisher(self.home.committer)
        self.files = SentFiles()
        self.run: Any = SimpleNamespace(
            home=self.home, publisher=told, state_written=told.state_written, begun=True,
            corrections=Corrections(), versions=self.versions, behind=None, saved_trials=(),
            closed=False,
        )  # fmt: skip

    def writes(self, number: int) -> None:
        """What Ray does before it asks for the state of callbacks."""
        (self.staging / STATE).write_text(str(number))
        (self.staging / "new").write_text(str(number))
        (self.staging / "new").rename(self.staging / SEARCH)

    def make(self, number: int) -> None:
        self.writes(number)
        self.files.made(self.run, str(self.staging))

    def copy(self, key: str, number: int) -> None:
        stream = self.files.stream(self.home, key, Kind.STATE, self.run, TIMEOUT_S)
        stream.write(str(number).encode())
        stream.close()

    def there(self) -> tuple[str, str]:
        self.files.flush(TIMEOUT_S)
        paths = (self.root / key for key in (STATE, SEARCH))
        state, search = (path.read_text() if path.exists() else "" for path in paths)
        return state, search


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    """One whose first version is there."""
    made = Driver(tmp_path)
    made.make(1)
    made.copy(STATE, 1)
    made.copy(SEARCH, 1)
    assert made.there() == ("1", "1")
    return made


def test_it_waits_for_the_state_that_was_made_with_it(driver: Driver) -> None:
    driver.make(2)
    driver.copy(SEARCH, 2)
    assert driver.there() == ("1", "1")
    driver.copy(STATE, 2)
    assert driver.there() == ("2", "2")


def test_the_first_one_of_a_search_goes_at_once_and_of_one_that_is_resumed_waits(
    tmp_path: Path,
) -> None:
    for name, trials, there in (("new", (), "1"), ("resumed", ("a trial",), "")):
        driver = Driver(tmp_path / name)
        driver.run.saved_trials = trials
        driver.make(1)
        driver.copy(SEARCH, 1)
        assert driver.there() == ("", there)
        driver.copy(STATE, 1)
        assert driver.there() == ("1", "1")


def test_where_there_is_no_room_for_state_it_stays_as_it_is(driver: Driver) -> None:
    driver.home.is_full = True
    for number in (2, 3):
        driver.make(number)
        driver.copy(SEARCH, number)
        driver.copy(STATE, number)
        driver.copy(SEARCH, number)
        assert driver.there() == ("1", "1")
        assert [*driver.files.unstored] == [STATE]

    driver.home.is_full = False
    driver.make(4)
    driver.copy(SEARCH, 4)
    driver.copy(STATE, 4)
    assert driver.there() == ("4", "4")
    assert not [*(driver.root / INCOMING_DIR).iterdir()]
    assert not driver.files.unstored


def test_a_torn_state_does_not_bring_it(driver: Driver) -> None:
    driver.make(2)
    driver.copy(SEARCH, 2)
    torn = driver.files.stream(driver.home, STATE, Kind.STATE, driver.run, TIMEOUT_S)
    torn.write(b'{"trial_data": [')
    torn.close()
    assert driver.there() == ("1", "1")


def test_where_it_cannot_be_put_later_that_is_told(driver: Driver) -> None:
    driver.make(2)
    driver.copy(SEARCH, 2)
    (driver.root / SEARCH).unlink()
    (driver.root / SEARCH / "in the way").mkdir(parents=True)
    driver.copy(STATE, 2)
    driver.files.flush(TIMEOUT_S)
    assert [*driver.files.unstored] == [SEARCH]
    assert (driver.root / STATE).read_text() == "2"


class Away(MemoryBucket):
    """Does not take what is in `refused`."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()

    def put(self, key: str, data: bytes, **options: Any) -> str:
        if key in self.refused:
            raise StoreUnreachableError("away")
        return super().put(key, data, **options)


class BucketDriver(Driver):
    """The same with a bucket, where each file waits for its turn."""

    def __init__(self, root: Path) -> None:
        self.bucket = Away()
        home = BucketHome(self.bucket)
        home.rewrite_s = 0.05
        super().__init__(root, home)

    def there(self) -> tuple[str, str]:
        self.files.flush(TIMEOUT_S)
        state, search = (self.bucket.objects.get(key, b"").decode() for key in (STATE, SEARCH))
        return state, search


def test_in_a_bucket_it_waits_for_the_state_that_was_made_with_it(tmp_path: Path) -> None:
    driver = BucketDriver(tmp_path)
    for number in (1, 2):  # the second one is made before the first one had its turn
        driver.make(number)
        driver.copy(SEARCH, number)
    assert driver.there() == ("", "1")
    driver.copy(STATE, 2)
    assert driver.there() == ("2", "2")
    driver.bucket.refused = {STATE}
    for number in (3, 4):
        driver.make(number)
        driver.copy(STATE, number)
        driver.copy(SEARCH, number)
        assert driver.there() == ("2", "2")
    driver.bucket.refused = set()
    driver.make(5)
    driver.copy(SEARCH, 5)
    driver.copy(STATE, 5)
    assert driver.there() == ("5", "5")
    assert not driver.home._incoming and not driver.files.unstored


def test_no_state_is_there_before_the_first_one_is(tmp_path: Path) -> None:
    """Without any, all trials would be taken for made."""
    driver = BucketDriver(tmp_path)
    driver.bucket.refused = {SEARCH}
    driver.make(1)
    driver.copy(SEARCH, 1)
    driver.copy(STATE, 1)
    assert driver.there() == ("", "")
    driver.bucket.refused = set()
    driver.make(2)
    driver.copy(SEARCH, 2)
    assert driver.there() == ("", "2"), "the state that waited was made before it"
    driver.copy(STATE, 2)
    assert driver.there() == ("2", "2")


def test_one_that_failed_does_not_let_the_next_one_go_before_its_state(tmp_path: Path) -> None:
    driver = BucketDriver(tmp_path)
    driver.make(1)
    driver.copy(SEARCH, 1)
    driver.copy(STATE, 1)
    assert driver.there() == ("1", "1")
    driver.bucket.refused = {SEARCH}
    driver.make(2)
    driver.copy(SEARCH, 2)
    driver.copy(STATE, 2)
    assert driver.there() == ("2", "1")
    driver.bucket.refused = set()
    driver.make(3)
    driver.copy(SEARCH, 3)
    assert driver.there() == ("2", "1")
    driver.copy(STATE, 3)
    assert driver.there() == ("3", "3")


def test_a_state_comes_at_the_end_whatever_is_wrong_with_the_search(tmp_path: Path) -> None:
    driver = BucketDriver(tmp_path)
    driver.bucket.refused = {SEARCH}
    driver.make(1)
    driver.copy(STATE, 1)
    driver.copy(SEARCH, 1)
    assert driver.there() == ("", "")
    driver.files.ended()
    assert driver.there() == ("1", "")
    assert [*driver.files.unstored] == [SEARCH]


def test_what_ray_has_written_and_not_counted_yet_waits_for_the_next_state(driver: Driver) -> None:
    """It asks for the state of callbacks, ours is the last, when both files are written."""
    driver.writes(2)
    driver.copy(SEARCH, 2)
    assert driver.there() == ("1", "1")
    driver.files.made(driver.run, str(driver.staging))
    driver.copy(SEARCH, 2)
    assert driver.there() == ("1", "1")
    driver.copy(STATE, 2)
    assert driver.there() == ("2", "2")


def test_what_is_replaced_while_it_is_copied_waits_for_the_next_state(driver: Driver) -> None:
    stream = driver.files.stream(driver.home, SEARCH, Kind.STATE, driver.run, TIMEOUT_S)
    driver.writes(2)
    stream.write(b"2")
    stream.close()
    assert driver.there() == ("1", "1")


def test_one_that_waits_is_not_put_after_a_newer_one_that_goes_ahead(tmp_path: Path) -> None:
    driver = BucketDriver(tmp_path)
    driver.bucket.refused = {SEARCH}
    driver.home.rewrite_s = 60.0  # the second one is copied before the first one has failed
    driver.make(1)
    driver.files._pace(driver.run)._next_s[SEARCH] = time.monotonic() + 0.5
    driver.copy(SEARCH, 1)
    driver.make(2)
    driver.copy(SEARCH, 2)
    driver.home.rewrite_s = 0.0
    assert driver.there() == ("", "")
    driver.bucket.refused = set()
    driver.files._pace(driver.run)._next_s.clear()
    driver.make(3)
    driver.copy(SEARCH, 3)
    assert driver.there() == ("", "3")
    driver.copy(STATE, 3)
    assert driver.there() == ("3", "3")


class Staged(Driver):
    """The same with write-behind, where a thread writes what was offered."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        told = self.run.publisher
        self.behind = self.run.behind = Behind(self.home, told, Silent())

    def copy(self, key: str, number: int, kind: Kind = Kind.STATE) -> None:
        file = self.files.held(key, kind, self.run)
        file.write(str(number).encode())
        file.close()

    def there(self) -> tuple[str, str]:
        paths = (self.root / key for key in (STATE, SEARCH))
        state, search = (path.read_text() if path.exists() else "" for path in paths)
        return state, search


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[Staged]:
    made = Staged(tmp_path)
    yield made
    made.behind.close(TIMEOUT_S)


def test_a_file_that_cannot_be_written_keeps_no_state_away(staged: Staged) -> None:
    (staged.root / "t" / "result.json" / "in the way").mkdir(parents=True)
    deadline_s = time.monotonic() + TIMEOUT_S
    number = 0
    while "" in staged.there() and time.monotonic() < deadline_s:
        number += 1
        staged.make(number)
        staged.copy("t/result.json", number, Kind.TRIAL_FILE)
        staged.copy(SEARCH, number)
        staged.copy(STATE, number)
        time.sleep(0.3)
    assert "" not in staged.there()


def test_the_first_one_is_not_written_after_the_last_one(staged: Staged) -> None:
    for number in (1, 2):  # before the thread that writes has its turn
        staged.make(number)
        staged.copy(SEARCH, number)
        staged.copy(STATE, number)
    staged.files.ended()
    staged.behind.flush(TIMEOUT_S)
    assert staged.there() == ("2", "2") and not staged.files.unstored
