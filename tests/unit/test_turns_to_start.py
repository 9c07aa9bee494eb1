"""Two runs of one name never start in one second on one machine."""

from __future__ import annotations

import fcntl
import tempfile
from pathlib import Path

import pytest

from tests.unit.clock import Clock
from tune_sync.turns_to_start import APART_S, take_turn


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_who_comes_within_two_seconds_waits_for_the_rest_of_them() -> None:
    clock, slept = Clock(), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now_s += seconds

    take_turn("exp", clock, sleep)
    take_turn("another", clock, sleep)
    assert slept == []
    clock.now_s += 0.5
    take_turn("exp", clock, sleep)
    take_turn("exp", clock, sleep)
    assert slept == [pytest.approx(APART_S - 0.5), pytest.approx(APART_S)]
    clock.now_s += APART_S
    take_turn("exp", clock, sleep)
    clock.now_s -= 3600  # a clock that was set back keeps nobody
    take_turn("exp", clock, sleep)
    assert len(slept) == 2


def test_who_holds_the_note_for_long_is_not_waited_for_without_end() -> None:
    asked = list[float]()
    take_turn("exp")
    folder = next(Path(tempfile.gettempdir()).glob("tune_sync-*-starts"))
    with open(next(folder.iterdir())) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        take_turn("exp", sleep=asked.append)
    assert 5 < sum(asked) < 60


def test_where_nothing_can_be_noted_nobody_waits(temporary: Path) -> None:
    next(iter([temporary])).rmdir()
    for _ in range(2):
        take_turn("exp", sleep=lambda s: pytest.fail("waited"))
