"""The driver's side of write-behind: what it writes, and how often."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.unit.staged import placed
from tests.unit.test_run_left import Silent
from tune_sync.behind.behind import Behind
from tune_sync.homes.home import LocalHome
from tune_sync.manifest import Manifest
from tune_sync.publisher import Publisher

REWRITE_S, TIMEOUT_S = 0.4, 30.0


class Limited(LocalHome):
    """A destination that refuses to replace one file more often than that."""

    rewrite_s = REWRITE_S


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Behind]:
    home = Limited(tmp_path)
    publisher = Publisher(home.committer)
    made = Behind(home, publisher, Silent())
    yield made
    made.close(TIMEOUT_S)
    publisher.close(TIMEOUT_S)


def test_state_that_changes_all_the_time_is_written_spaced_and_the_newest_at_last(
    behind: Behind,
) -> None:
    wrote: list[tuple[float, int]] = []

    def write(number: int) -> Any:
        return lambda: wrote.append((time.monotonic(), number))

    began_s, took_s = time.monotonic(), []
    for number in range(40):
        start_s = time.monotonic()
        behind.offer("experiment_state-1.json", write(number), is_state=True, names=True)
        took_s.append(time.monotonic() - start_s)
        time.sleep(0.05)
    behind.flush(TIMEOUT_S)
    assert sorted(took_s)[20] < 0.1, "the control loop offers it"
    assert wrote[-1][1] == 39
    assert 2 <= len(wrote) <= (time.monotonic() - began_s) / REWRITE_S + 3
    times = [at_s for at_s, _ in wrote]
    assert all(b - a >= REWRITE_S * 0.9 for a, b in pairwise(times))


def test_state_that_cannot_be_written_holds_nobody_up_and_is_written_later(behind: Behind) -> None:
    wrote: list[int] = []
    in_time: list[bool] = []
    fails, may_fail = [OSError("it hangs, then fails")] * 3, threading.Event()

    def write() -> None:
        if fails:
            in_time.append(may_fail.wait(TIMEOUT_S))
            raise fails.pop()
        wrote.append(1)

    behind.offer("experiment_state-1.json", write, is_state=True, names=True)
    may_fail.set()  # whoever waited for the write would not come here
    behind.flush(TIMEOUT_S)
    assert wrote == [1]
    assert in_time == [True] * 3, "whoever offers it waits for the write"


def test_what_a_search_has_made_is_written_after_the_state_that_names_it(behind: Behind) -> None:
    wrote: list[str] = []
    fails, search = [OSError("no room")], "basic-variant-state-1.json"

    def state() -> None:
        if fails:
            raise fails.pop()
        wrote.append("state")

    # As Ray copies them. The control loop offers both before the other thread looks.
    with behind._tables:
        behind.offer(search, lambda: wrote.append("search"), is_state=True)
        behind.offer("experiment_state-1.json", state, is_state=True, names=True)
    behind.flush(TIMEOUT_S)
    assert wrote == ["state", "search"]
    assert not fails


def test_what_someone_removed_from_the_destination_is_lost_once_a_trial_wants_it(
    behind: Behind, tmp_path: Path
) -> None:
    home = LocalHome(tmp_path)
    for number in (0, 1):
        behind.accept_placed(placed(home.committer, {"a": b"1"}, f"t/checkpoint_00000{number}"))
    behind.flush(TIMEOUT_S)
    shutil.rmtree(tmp_path / "t/checkpoint_000001")
    for number in (0, 1):
        behind.hurry(f"t/checkpoint_00000{number}")
    end_s = time.monotonic() + TIMEOUT_S
    while not behind.why_lost("t/checkpoint_000001"):
        assert time.monotonic() < end_s
        time.sleep(0.01)
    assert behind.gone() == {"t/checkpoint_000001"}
    assert behind.newest_published("t") == "t/checkpoint_000000"
    assert behind.why_lost("t/checkpoint_000000") == ""


def test_one_that_is_refused_holds_up_neither_others_nor_a_state_that_does_not_name_it(
    behind: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer, wrote = behind._home.committer, threading.Event()
    record, refused = committer.record, "t/checkpoint_000000"

    def refuse(manifest: Manifest) -> None:
        if manifest.checkpoint == refused:
            raise PermissionError(13, "Permission denied")
        record(manifest)

    monkeypatch.setattr(committer, "record", refuse)
    with behind._tables:  # a state that was made before both, and is not written yet
        behind.offer("experiment_state-1.json", wrote.set, is_state=True, names=True)
        for number in range(2):
            manifest = placed(committer, {"a": b"1"}, f"t/checkpoint_00000{number}")
            behind.accept_placed(manifest)
    assert wrote.wait(TIMEOUT_S)
    end_s = time.monotonic() + TIMEOUT_S
    while not behind.newest_published("t"):
        assert time.monotonic() < end_s
        time.sleep(0.01)
    assert behind.newest_published("t") == "t/checkpoint_000001"
