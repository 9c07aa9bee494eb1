"""Files of trials that cannot be stored are named by `fit()`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tests.hosts.drivers.trainables import train_n
from tune_sync import RunConfig, SyncConfig
from tune_sync.errors import NotStoredError


def turns_a_directory_into_a_file(config: dict[str, Any]) -> None:
    """At home that directory is in the way of the file, unless it is removed at last."""
    notes_at_home = Path(config["home"], Path.cwd().name, "notes")
    # After a report Ray also sends files beside the function, once a `sync_period`, and fails the
    # trial if one is removed meanwhile. This one begins that period; the next report waits for it.
    Path("begun").touch()
    tune.report({"step": -1})
    Path("notes").mkdir()
    Path("notes/one.txt").write_text("1")
    train_n({"settings": {"steps": 1}})
    assert (notes_at_home / "one.txt").exists()
    shutil.rmtree("notes")
    Path("notes").write_text("2")
    Path("other").write_text("stored")
    train_n({"settings": {"steps": 2}})
    if config["makes_way"]:
        shutil.rmtree(notes_at_home)


def tuner(storage: Path, makes_way: bool) -> tune.Tuner:
    run_config = RunConfig(
        name="x", storage_path=storage, verbose=0, sync_config=SyncConfig(sync_artifacts=True)
    )
    return tune.Tuner(
        turns_a_directory_into_a_file,
        param_space={"home": str(storage / "x"), "makes_way": makes_way},
        run_config=run_config,
    )


def test_a_file_of_a_trial_that_is_not_stored_is_named_at_the_end(
    local_ray: None, tmp_path: Path
) -> None:
    with pytest.raises(NotStoredError, match=r"turns_a_directory\S*/notes: .*directory"):
        tuner(tmp_path, makes_way=False).fit()
    (other,) = tmp_path.glob("x/*/other")
    assert other.read_text() == "stored"
    (result,) = tune.Tuner.restore(str(tmp_path / "x"), turns_a_directory_into_a_file).get_results()
    assert result.error is None


def test_one_that_is_stored_after_all_is_not(local_ray: None, tmp_path: Path) -> None:
    (result,) = tuner(tmp_path, makes_way=True).fit()
    assert result.error is None
    assert Path(result.path, "notes").read_text() == "2"


def leaves_odd_files(config: dict[str, Any]) -> None:
    """Without checkpoints: its files are sent as it ends."""
    for name in "good", "result.json", "checkpoint_000007":
        Path(name).write_text("of the trial")
    Path("loop").symlink_to(".")
    tune.report({"step": 0})


def test_all_else_is_stored_what_is_not_is_named_and_the_drivers_files_stay(
    local_ray: None, tmp_path: Path
) -> None:
    sync_config = SyncConfig(sync_artifacts=True)
    run_config = RunConfig(name="x", storage_path=tmp_path, verbose=0, sync_config=sync_config)
    with pytest.raises(NotStoredError, match=r"loop/loop") as raised:
        tune.Tuner(leaves_odd_files, run_config=run_config).fit()
    assert "checkpoint_000007: a file cannot have the name" in str(raised.value)
    (trial,) = tmp_path.glob("x/leaves_odd_files_*")
    assert (trial / "good").read_text() == "of the trial"
    assert (trial / "loop/loop/good").read_text() == "of the trial"
    assert json.loads((trial / "result.json").read_text())["step"] == 0
