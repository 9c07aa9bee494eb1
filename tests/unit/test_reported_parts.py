"""What is published is all that was reported, or nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.staged import CHECKPOINT, sealed
from tune_sync.errors import NotWholeError
from tune_sync.homes import disk
from tune_sync.homes.home import LocalHome
from tune_sync.homes.shared.home import SharedHome
from tune_sync.layout import attempt_key

RANKS = {0: {"rank0.bin": b"zero"}, 1: {"rank1.bin": b"one"}}


@pytest.fixture(params=[LocalHome, SharedHome])
def home(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> LocalHome:
    monkeypatch.setattr(disk, "VISIBLE_WITHIN_S", 0.2)
    made: LocalHome = request.param(tmp_path / "exp")
    return made


def both(home: LocalHome) -> list[str]:
    return [sealed(home.committer, files, rank=rank) for rank, files in RANKS.items()]


def hidden(home: LocalHome, attempt: str) -> tuple[Path, Path]:
    """Where an attempt is while it is not seen, and where it belongs."""
    at = home.root / attempt_key(CHECKPOINT, attempt)
    return shutil.move(at, home.root.parent / attempt), at


@pytest.mark.parametrize("rank", RANKS)
def test_half_of_what_was_reported_is_refused_with_what_is_missing_and_kept(
    home: LocalHome, rank: int
) -> None:
    attempts = both(home)
    hidden(home, attempts[rank])
    with pytest.raises(NotWholeError, match=f"1 of the 2 parts .*{attempts[rank]}/seal.json"):
        home.committer.place(CHECKPOINT, attempts=attempts)
    assert home.info(CHECKPOINT) is None
    left = [
        entry.key.rpartition("/")[2]
        for entry in home.store.list(f".tune_sync/staging/{CHECKPOINT}")
    ]
    assert left == [attempts[1 - rank]]


def test_it_is_placed_once_the_rest_is_there(home: LocalHome) -> None:
    attempts = both(home)
    away, at = hidden(home, attempts[1])
    with pytest.raises(NotWholeError):
        home.committer.place(CHECKPOINT, attempts=attempts)
    shutil.move(away, at)
    placed = home.committer.place(CHECKPOINT, attempts=attempts)
    assert [file.path for file in placed.manifest.files] == ["rank0.bin", "rank1.bin"]


def test_a_restore_waits_for_the_rest_and_takes_it_when_it_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "VISIBLE_WITHIN_S", 0.2)
    home = SharedHome(tmp_path / "exp")
    attempts = both(home)
    away, at = hidden(home, attempts[1])
    with pytest.raises(NotWholeError):
        home.committer.place(CHECKPOINT, attempts=attempts)
    recovery = SharedHome(tmp_path / "exp").committer.recover(waits=True)
    assert (recovery.completed, recovery.dropped, recovery.kept) == ((), (), (CHECKPOINT,))
    shutil.move(away, at)
    recovery = SharedHome(tmp_path / "exp").committer.recover(waits=True)
    assert recovery.completed == (CHECKPOINT,)
    assert sorted(p.name for p in (tmp_path / "exp" / CHECKPOINT).iterdir()) == [
        "rank0.bin", "rank1.bin",
    ]  # fmt: skip
