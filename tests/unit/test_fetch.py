"""`fetch` says what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tune_sync import fetch
from tune_sync.errors import ConfigError


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
