"""Two runs without a name that begin in one second: Ray gives both the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tune_sync import RunConfig, SyncConfig
from tune_sync.destination import Destination
from tune_sync.new_run import claim_name

NAME = "train_2026-01-02_03-04-05"


@pytest.mark.parametrize("is_shared", [False, True])
def test_they_get_names_of_their_own(tmp_path: Path, is_shared: bool) -> None:
    place = Destination(str(tmp_path / "results"), "")
    names = [claim_name(place, NAME, is_shared=is_shared) for _ in range(3)]
    assert names == [NAME, f"{NAME}_2", f"{NAME}_3"]
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == names


def test_they_get_names_of_their_own_in_a_bucket() -> None:
    names = {claim_name(Destination("bucket/results", "s3"), NAME) for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith(f"{NAME}_") for name in names)


def test_the_config_of_a_run_takes_the_name_that_is_free(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    config = RunConfig(storage_path=tmp_path, sync_config=SyncConfig())
    config.name = NAME  # as Ray does
    assert config.name == f"{NAME}_2"
    assert (tmp_path / f"{NAME}_2").is_dir()
