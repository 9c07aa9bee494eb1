"""`fetch` says what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tests.unit.staged import CHECKPOINT, placed
from tune_sync import fetch
from tune_sync.errors import ConfigError, DamagedError
from tune_sync.homes.commit import Committer
from tune_sync.homes.store import LocalStore


@pytest.mark.parametrize("nothing", [None, "exp/trial/checkpoint_000000"])
def test_what_is_no_checkpoint_is_refused_before_anything_is_made(
    tmp_path: Path, nothing: Any
) -> None:
    with pytest.raises(ConfigError, match=r"a checkpoint is needed, such as result\.checkpoint"):
        fetch(nothing, tmp_path / "above" / "copy")
    assert list(tmp_path.iterdir()) == []


def test_a_copy_may_have_any_name_that_a_directory_can_have(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made/file").write_text("text")
    found = fetch(tune.Checkpoint.from_directory(tmp_path / "made"), tmp_path / ("n" * 255))
    assert (found / "file").read_text() == "text"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "n" * 255]


@pytest.fixture
def published(tmp_path: Path) -> Path:
    committer = Committer(LocalStore(tmp_path / "exp"))
    committer.record(placed(committer, {"model": b"weights", "step": b"1"}))
    return tmp_path / "exp" / CHECKPOINT


def test_a_copy_of_what_is_as_it_was_stored_is_made(published: Path, tmp_path: Path) -> None:
    found = fetch(tune.Checkpoint.from_directory(published), tmp_path / "copy")
    assert (found / "model").read_bytes() == b"weights"


@pytest.mark.parametrize("change", ["cut", "another byte", "missing"])
def test_what_is_not_as_it_was_stored_is_named_and_no_copy_is_made(
    published: Path, tmp_path: Path, change: str
) -> None:
    model = published / "model"
    if change == "missing":
        model.unlink()
    else:
        model.write_bytes(b"we" if change == "cut" else b"weighty")
    with pytest.raises(DamagedError, match=r"checkpoint_000000 is not as it was stored: model"):
        fetch(tune.Checkpoint.from_directory(published), tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["exp"]
