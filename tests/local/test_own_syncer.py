"""`SyncConfig(upload_dir=..., syncer=...)` with a syncer of the user's own, in a real search."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tests.bed.tree import tree_digest
from tests.hosts.drivers.trainables import read_checkpoint, train_n
from tests.local.old_syncer import OldSyncer
from tests.local.own_syncers import DriversOwn, PlainSyncer, copying, refuse_checkpoints
from tests.local.trainables import STEPS, stumbles
from tune_sync import (
    CallbackSyncer,
    RunConfig,
    SyncConfig,
    Syncer,
    fetch_experiment,
    run_config_kwargs,
)
from tune_sync.errors import ConfigError, ExperimentExistsError, NotStoredError


def config_of(tmp_path: Path, syncer: Syncer, **fields: Any) -> RunConfig:
    sync = SyncConfig(upload_dir=str(tmp_path / "far"), syncer=syncer)
    return RunConfig(
        name="x", storage_path=tmp_path / "home", sync_config=sync, verbose=0, **fields
    )


def visible(root: Path) -> dict[str, Any]:
    """All of an experiment but what is about who runs it, and what a directory syncer leaves."""
    kept = (".tune_sync/format.json", ".tune_sync/manifests/")
    return {
        key: entry
        for key, entry in tree_digest(root).items()
        if (not key.startswith(".tune_sync") or key.startswith(kept))
        and not key.startswith(".validate")
    }


@pytest.mark.lowest
def test_all_is_there_at_the_end_and_comes_back_when_the_drivers_disk_is_lost(
    local_ray: None, tmp_path: Path
) -> None:
    config = config_of(tmp_path, copying())
    assert len(tune.Tuner(stumbles, run_config=config).fit().errors) == 1
    home, far = tmp_path / "home/x", tmp_path / "far/x"
    assert visible(far) == visible(home)
    shutil.rmtree(tmp_path / "home")

    fetch_experiment(far, home, copying())
    (result,) = tune.Tuner.restore(str(home), stumbles, resume_errored=True).fit()
    assert result.error is None
    assert (result.metrics["step"], result.metrics["resumed_at"]) == (5, 3)
    assert visible(far) == visible(home)
    found = sorted(far.glob("*/checkpoint_*"))
    assert [read_checkpoint(c)["step"] for c in found] == list(range(STEPS))


@pytest.mark.parametrize("make", [OldSyncer, PlainSyncer])
def test_syncers_written_for_old_ray_work_and_what_is_not_kept_goes_there_too(
    local_ray: None, tmp_path: Path, make: type[Syncer]
) -> None:
    keep = tune.CheckpointConfig(num_to_keep=1)
    config = config_of(tmp_path, make(), checkpoint_config=keep)
    (result,) = tune.Tuner(train_n, param_space={"settings": {"steps": 4}}, run_config=config).fit()
    assert result.error is None
    (left,) = (tmp_path / "far/x").glob("*/checkpoint_*")
    assert read_checkpoint(left)["step"] == 3


def test_what_did_not_get_there_makes_fit_raise_and_a_restore_sends_it(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CallbackSyncer, "wait_or_retry", lambda self, *args: self.wait())
    syncer = CallbackSyncer(refuse_checkpoints, refuse_checkpoints, shutil.rmtree)
    with pytest.raises(NotStoredError) as failure:
        tune.Tuner(train_n, run_config=config_of(tmp_path, syncer)).fit()
    home, far = tmp_path / "home/x", tmp_path / "far/x"
    for part in (str(far), "checkpoint_000000", "507 Insufficient Storage", "a restore from there"):
        assert part in str(failure.value)
    assert not list(far.glob("*/checkpoint_*"))

    (tmp_path / "room").touch()
    assert not tune.Tuner.restore(str(home), train_n).fit().errors
    assert visible(far) == visible(home)


def test_a_name_that_is_taken_there_is_refused_and_nothing_is_mixed(
    local_ray: None, tmp_path: Path
) -> None:
    tune.Tuner(train_n, run_config=config_of(tmp_path, copying())).fit()
    before = tree_digest(tmp_path / "far")
    shutil.rmtree(tmp_path / "home")
    with pytest.raises(ExperimentExistsError, match=r"far/x.*fetch_experiment"):
        tune.Tuner(train_n, run_config=config_of(tmp_path, copying())).fit()
    assert tree_digest(tmp_path / "far") == before
    (tmp_path / "copy").mkdir()
    with pytest.raises(FileExistsError, match="never mixed"):
        fetch_experiment(tmp_path / "far/x", tmp_path / "copy", copying())
    # What the refused start has left is no experiment, and not in the way of the earlier one.
    fetch_experiment(tmp_path / "far/x", tmp_path / "home/x", copying())
    assert not tune.Tuner.restore(str(tmp_path / "home/x"), train_n).fit().errors


def test_the_syncer_is_needed_on_the_drivers_node_alone(local_ray: None, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    kwargs = run_config_kwargs(
        SyncConfig(upload_dir=str(tmp_path / "far"), syncer=DriversOwn(notes)),
        storage_path=tmp_path / "home", name="x",
    )  # fmt: skip
    tune.run(train_n, config={"settings": {"steps": 2}}, verbose=0, **kwargs)
    assert len(list((tmp_path / "far/x").glob("*/checkpoint_*"))) == 2
    assert set(notes.read_text().split()) == {str(os.getpid())}


def test_a_moved_experiment_is_sent_below_its_new_name(local_ray: None, tmp_path: Path) -> None:
    assert tune.Tuner(stumbles, run_config=config_of(tmp_path, copying())).fit().errors
    before = tree_digest(tmp_path / "far/x")
    moved = (tmp_path / "home/x").rename(tmp_path / "home/moved")
    (result,) = tune.Tuner.restore(str(moved), stumbles, resume_errored=True).fit()
    assert result.error is None
    assert visible(tmp_path / "far/moved") == visible(moved)
    assert tree_digest(tmp_path / "far/x") == before


def test_a_syncer_that_cannot_be_pickled_is_refused(tmp_path: Path) -> None:
    client = threading.Lock()
    syncer = CallbackSyncer(lambda s, t: client.acquire(), print, print)
    with pytest.raises(ConfigError, match=r"CallbackSyncer\(...\)\) cannot be pickled"):
        config_of(tmp_path, syncer)


def test_what_a_syncer_cannot_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be moved aside"):
        config_of(tmp_path, copying(), overwrite=True)
    with pytest.raises(ConfigError, match="neither a URL nor a path"):
        SyncConfig(upload_dir="me@host:/data")
    with pytest.raises(ConfigError, match="what the syncer understands"):
        SyncConfig(upload_dir="/", syncer=copying())
    with pytest.raises(ConfigError, match=r"CommandSyncer.*your own has its credentials"):
        SyncConfig(upload_dir="s3://b/x", syncer=copying(), storage_options={"key": "k"})
    for staged in ({"wait_for": "staged"}, {"on_sync_error": "continue"}):
        with pytest.raises(ConfigError, match=r"CommandSyncer.*not for a syncer of your own"):
            SyncConfig(upload_dir="x", syncer=copying(), **staged)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="syncer of your own"):
        run_config_kwargs(SyncConfig(upload_dir="x", syncer=copying()), api="train")
