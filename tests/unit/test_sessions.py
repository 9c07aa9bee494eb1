"""A restored run whose clock says less than that of the run before: its state counts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import suppress
from fnmatch import filter as matching
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.restored_run import MINE, Experiment
from tests.unit.test_run_left import Silent
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.homes.home import Home, LocalHome
from tune_sync.homes.state_records import Corrections
from tune_sync.layout import STATE_FILES, Kind, checkpoint_name
from tune_sync.publisher import Publisher
from tune_sync.sent_files import SentFiles
from tune_sync.sessions import Sessions
from tune_sync.testing.fault_store import Crashed, FaultStore, When, crash_at
from tune_sync.testing.memory_bucket import MemoryBucket
from tune_sync.versions import Versions

TOKYO, UTC, LATER = "2026-11-30_21-00-00", "2026-11-30_12-10-00", "2026-11-30_12-20-00"
STATE, SEARCH = "experiment_state-*.json", "searcher-state-*.pkl"
OLD, NEW = f"{MINE}/{checkpoint_name(0)}", f"{MINE}/{checkpoint_name(1)}"
TIMEOUT_S = 30.0


class Session:
    """Of Ray: writes where its driver does, and copies all that is there, whoever wrote it.

    It restores before: brings what is at home there.
    """

    def __init__(self, home: Home, staging: Path, name: str) -> None:
        self.home, self.staging, self.name = home, staging, name
        self.files, self.versions = SentFiles(), Versions()
        told = Publisher(SimpleNamespace(), "here")
        staging.mkdir(exist_ok=True)
        found = [entry.key for entry in home.list("", False) if not entry.is_dir]
        for key in found:
            (staging / key).write_bytes(home.read(key, 0, 1000))
        self.run: Any = SimpleNamespace(
            home=home, publisher=told, state_written=told.state_written, begun=True, closed=False,
            corrections=Corrections(), versions=self.versions, behind=None, saved_trials=found,
        )  # fmt: skip
        self.files.resume(str(staging))

    def save(self, text: str, *, backwards: bool = False) -> None:
        """Make a version of everything, and copy."""
        for pattern in STATE_FILES:
            (self.staging / pattern.replace("*", self.name)).write_text(json.dumps(text))
        self.versions.made()
        for path in sorted(self.staging.iterdir(), reverse=backwards):
            stream = self.files.stream(self.home, path.name, Kind.STATE, self.run, TIMEOUT_S)
            stream.write(path.read_bytes())
            stream.close()
        self.files.flush(TIMEOUT_S)

    def told(self) -> set[str]:
        """What Ray would go on from: of each, what has the greatest name."""
        found = [entry.key for entry in self.home.list("", False)]
        names = [max(matching(found, pattern)) for pattern in STATE_FILES]
        return {json.loads(bytes(self.home.read(name, 0, 1000))) for name in names}


def on_disk(root: Path) -> Home:
    return LocalHome(root / "home")


def in_a_bucket(root: Path) -> Home:
    home = BucketHome(MemoryBucket())
    home.rewrite_s = 0.02
    return home


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("is_same_driver", [False, True], ids=["elsewhere", "same node"])
@pytest.mark.parametrize("make", [on_disk, in_a_bucket])
def test_what_counts_is_always_what_was_saved_last(
    make: Callable[[Path], Home], is_same_driver: bool, backwards: bool, tmp_path: Path
) -> None:
    home = make(tmp_path)
    for number, name in enumerate([TOKYO, UTC, LATER, UTC, TOKYO, "2026-11-30_23-00-00", UTC]):
        staging = tmp_path / ("staging" if is_same_driver else f"staging {number}")
        session = Session(home, staging, name)
        for version in range(3):
            session.save(f"{number}.{version}", backwards=backwards)
            assert session.told() == {f"{number}.{version}"}, name
        assert not session.files.unstored


def test_what_never_came_home_of_an_earlier_session_stays_away(tmp_path: Path) -> None:
    home, staging = on_disk(tmp_path), tmp_path / "staging"
    Session(home, staging, UTC).save("first")
    (staging / STATE.replace("*", TOKYO)).write_text('"it names what was never stored"')
    session = Session(home, staging, LATER)
    session.save("second")
    assert session.told() == {"second"}


@pytest.mark.parametrize("when", ["before", "half", "after"])
def test_a_kill_at_any_step_leaves_one_of_both(when: When, tmp_path: Path) -> None:
    for count in itertools.count(1):
        root = tmp_path / str(count)
        home = LocalHome(root)
        Session(home, tmp_path / f"first {count}", TOKYO).save("old")
        session = Session(home, tmp_path / f"second {count}", UTC)
        session.run.begun = False  # so that this thread puts, and is killed
        plain = home.store
        home.store = FaultStore(plain, crash_at(count, when))  # type: ignore[assignment]
        has_ended = False
        with suppress(Crashed):
            session.save("new")
            has_ended = True
        home.store = plain
        state = max(root.glob(STATE)).read_text()
        search = max(root.glob(SEARCH)).read_text()
        assert (state, search) in (('"old"', '"old"'), ('"new"', '"old"'), ('"new"', '"new"'))
        if has_ended:
            assert session.told() == {"new"}
            return


@pytest.mark.parametrize("behind", [False, True], ids=["at once", "behind"])
def test_a_delete_goes_only_where_the_state_that_counts_does_not_name_it(
    behind: bool, tmp_path: Path
) -> None:
    experiment = Experiment(tmp_path)
    experiment.publish(MINE, 0, 1)
    run, handler = experiment.run, experiment.filesystem.handler
    staging = tmp_path / "staging"
    staging.mkdir()
    for place in (staging, experiment.root):
        (place / STATE.replace("*", TOKYO)).write_text(f'{{"names": "{OLD}"}}')
    handler.files.learn(run)
    if behind:
        run.write_behind(Silent())
    handler.files.resume(str(staging))
    run.note_latest(NEW)
    run.let_go(OLD)
    for number in range(3):
        (staging / STATE.replace("*", UTC)).write_text(f'{{"names": "{NEW}", "at": {number}}}')
        run.versions.made()
        for path in staging.iterdir():
            with experiment.filesystem.open_output_stream(f"{experiment.root}/{path.name}") as file:
                file.write(path.read_bytes())
    run.flush(TIMEOUT_S)
    run.close()
    newest = json.loads(max(experiment.root.glob(STATE)).read_text())
    assert newest == {"names": NEW, "at": 2}
    assert not (experiment.root / OLD).exists()


def test_nothing_else_is_given_another_name(tmp_path: Path) -> None:
    for name in ("events-2026.log", STATE.replace("*", TOKYO)):
        (tmp_path / name).write_text("it")
    sessions = Sessions.of(str(tmp_path))
    of_trials = (f"{MINE}/{STATE.replace('*', UTC)}", "experiment_state-1_a/params.json")
    for key in ("events-2025.log", "tuner.pkl", *of_trials):
        assert sessions.place(key) == key and not sessions.left(key, "")
    later = STATE.replace("*", "2027-01-01_00-00-00")
    assert sessions.place(later) == later
    assert Sessions().place(STATE.replace("*", UTC)) == STATE.replace("*", UTC)
