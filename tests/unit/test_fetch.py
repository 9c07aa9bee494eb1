"""`fetch` says what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tune_sync import fetch
from tune_sync.errors import ConfigError


@pytest.mark.parametrize("nothing", [None, "exp/trial/checkpoint_000000"])
def test_what_is_no_checkpoint_is_refused_before_anything_is_made(
    tmp_path: Path, nothing: Any
) -> None:
    with pytest.raises(ConfigError, match=r"a checkpoint is needed, such as result\.checkpoint"):
        fetch(nothing, tmp_path / "above" / "copy")
    assert list(tmp_path.iterdir()) == []
