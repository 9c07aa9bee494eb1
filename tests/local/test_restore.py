"""A restore goes on where the run stopped, or says why it cannot; it never starts afresh."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
from ray import tune

from tests.bed.tree import Entry, tree_digest
from tests.hosts.drivers.trainables import TrainN, read_checkpoint, train_n
from tests.local.trainables import STEPS, Stumbles, stumbles
from tune_sync import (
    CallbackSyncer,
    RunConfig,
    SyncConfig,
    restore_or_start,
    run_config_kwargs,
)
from tune_sync.destination import Destination
from tune_sync.errors import ConfigError, DamagedError, ExperimentExistsError
from tune_sync.new_run import RUN_CONFIG, ways_out

NOBODY = 65534

AS_NOBODY = """
import os, sys
from ray import tune
os.setgid({uid}); os.setuid({uid})
def train(config): pass
for act in (tune.Tuner.can_restore, lambda path: tune.Tuner.restore(path, train)):
    try:
        print("NO ERROR", act(sys.argv[1]))
    except Exception as error:
        print(type(error).__name__, error)
"""


def checkpoints(root: Path) -> list[Path]:
    return sorted(root.glob("*/checkpoint_*"))


def visible(root: Path) -> dict[str, Entry]:
    """Ray's own files, without ours."""
    return {k: v for k, v in tree_digest(root).items() if not k.startswith(".tune_sync")}


@pytest.fixture(scope="module")
def stumbled(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment whose function trial failed after three checkpoints; copy it before use."""
    storage = tmp_path_factory.mktemp("stumbled")
    results = tune.Tuner(
        stumbles, run_config=RunConfig(name="x", storage_path=storage, verbose=0)
    ).fit()
    assert len(results.errors) == 1
    assert len(checkpoints(storage / "x")) == 3
    return storage / "x"


@pytest.fixture
def copied(stumbled: Path, tmp_path: Path) -> Path:
    subprocess.run(["cp", "-a", str(stumbled), str(tmp_path / "x")], check=True)
    return tmp_path / "x"


@pytest.mark.lowest
@pytest.mark.parametrize("trainable", [stumbles, Stumbles])
def test_numbering_of_checkpoints_goes_on_after_a_restore(
    local_ray: None, tmp_path: Path, trainable: Any
) -> None:
    config = RunConfig(
        name="x", storage_path=tmp_path, verbose=0,
        checkpoint_config=tune.CheckpointConfig(
            **({} if trainable is stumbles else {"checkpoint_frequency": 1})
        ),
    )  # fmt: skip
    space = {"mark": str(tmp_path / "mark")}
    assert len(tune.Tuner(trainable, param_space=space, run_config=config).fit().errors) == 1
    root = tmp_path / "x"
    first = checkpoints(root)
    assert [read_checkpoint(c)["step"] for c in first] == [0, 1, 2]
    before = [tree_digest(c) for c in first]

    (result,) = tune.Tuner.restore(str(root), trainable, resume_errored=True).fit()
    assert result.error is None
    assert (result.metrics["step"], result.metrics["resumed_at"]) == (5, 3)
    after = checkpoints(root)
    assert [read_checkpoint(c)["step"] for c in after] == list(range(STEPS))
    assert [c.name for c in after] == [f"checkpoint_{i:06d}" for i in range(STEPS)]
    assert [tree_digest(c) for c in after[:3]] == before


@pytest.mark.lowest
def test_a_name_used_again_is_refused_before_anything_is_written(
    copied: Path, local_ray: None
) -> None:
    before = tree_digest(copied)
    config = RunConfig(name="x", storage_path=copied.parent, verbose=0)
    with pytest.raises(ExperimentExistsError) as refusal:
        tune.Tuner(TrainN, run_config=config).fit()
    for part in (f'tune.Tuner.restore("{copied}"', "choose another name", "overwrite=True"):
        assert part in str(refusal.value)
    with pytest.raises(ExperimentExistsError, match=r'resume"\) and tune.run\(..., resume=True\)'):
        tune.run(train_n, verbose=0, **run_config_kwargs(storage_path=copied.parent, name="x"))
    assert tree_digest(copied) == before
    assert os.listdir(copied.parent) == ["x"]


def test_overwrite_moves_the_earlier_run_aside_and_both_restore(
    copied: Path, local_ray: None
) -> None:
    before = visible(copied)
    config = RunConfig(name="x", storage_path=copied.parent, overwrite=True, verbose=0)
    (result,) = tune.Tuner(train_n, param_space={"settings": {"steps": 2}}, run_config=config).fit()
    assert result.error is None
    (aside,) = (path for path in copied.parent.iterdir() if path.name != "x")
    assert aside.name.startswith("x.")
    assert visible(aside) == before
    assert len(checkpoints(copied)) == 2
    assert not set(before) & {k for k in visible(copied) if "/checkpoint_" in k}

    (new,) = tune.Tuner.restore(str(copied), train_n).get_results()
    assert (new.config["settings"]["steps"], new.metrics["step"]) == (2, 1)
    (old,) = tune.Tuner.restore(str(aside), stumbles, resume_errored=True).fit()
    assert (old.config, old.metrics["step"]) == ({}, 5)
    assert len(checkpoints(aside)) == STEPS
    assert len(checkpoints(copied)) == 2


def test_a_trial_whose_directory_was_moved_away_by_itself_does_not_go_on_there(
    copied: Path, local_ray: None, tmp_path: Path
) -> None:
    (trial,) = copied.glob("stumbles_*")
    elsewhere = trial.rename(tmp_path / "elsewhere")
    trial.symlink_to(elsewhere)
    before = tree_digest(elsewhere)
    restored = tune.Tuner.restore(str(copied), stumbles, resume_errored=True)
    with pytest.raises(ConfigError, match=r"outside of .*move that directory back, or the whole"):
        restored.fit()
    assert tree_digest(elsewhere) == before
    trial.unlink()
    elsewhere.rename(trial)
    (result,) = tune.Tuner.restore(str(copied), stumbles, resume_errored=True).fit()
    assert (result.metrics["step"], result.metrics["resumed_at"]) == (STEPS - 1, 3)


def test_what_is_not_there_is_not_restored_and_not_begun(local_ray: None, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert not tune.Tuner.can_restore(str(missing))
    with pytest.raises(FileNotFoundError, match="missing"):
        tune.Tuner.restore(str(missing), train_n)
    assert os.listdir(tmp_path) == []


def test_what_may_not_be_looked_at_is_an_error_not_an_empty_place(copied: Path) -> None:
    before = tree_digest(copied)
    copied.chmod(0)
    for directory in (copied.parent, *copied.parent.parents):
        if directory.is_relative_to("/tmp/") and directory.stat().st_uid == os.getuid():
            directory.chmod(0o755)
    script = AS_NOBODY.format(uid=NOBODY)
    argv = [sys.executable, "-c", script, str(copied)]
    env = {**os.environ, "HOME": "/tmp"}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=250, env=env, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line]
    assert "NO ERROR" not in done.stdout, done.stdout
    assert len([line for line in lines if "ermission" in line]) == 2, done.stdout
    assert tree_digest(copied) == before


def test_a_broken_tuner_state_is_restored_from_its_copy(copied: Path, local_ray: None) -> None:
    tuner = copied / "tuner.pkl"
    whole = tuner.read_bytes()
    tuner.write_bytes(whole[: len(whole) // 2])
    before = tree_digest(copied)
    with pytest.raises(Exception, match=r"(?i)pickle|truncated"):  # by Ray alone
        tune.Tuner.restore(str(copied), stumbles, resume_errored=True)
    assert tree_digest(copied) == before
    config = RunConfig(name="x", storage_path=copied.parent, verbose=0)
    (result,) = restore_or_start(stumbles, run_config=config, resume_errored=True).fit()
    assert (result.error, result.metrics["resumed_at"]) == (None, 3)
    assert tuner.read_bytes() == whole


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\x80\x05"])
def test_what_comes_back_by_hand_restores_with_plain_ray(copied: Path, damage: bytes) -> None:
    (copied / "tuner.pkl").write_bytes(damage)
    (copied / "tuner.pkl").write_bytes((copied / ".tune_sync/tuner.pkl").read_bytes())
    (result,) = tune.Tuner.restore(str(copied), stumbles, resume_errored=True).get_results()
    assert result.metrics["step"] == 2


def test_by_ray_alone_a_restore_goes_on_from_what_the_state_names(
    copied: Path, local_ray: None, tmp_path: Path
) -> None:
    before = {c.name: tree_digest(c) for c in checkpoints(copied)}
    tuner = tune.Tuner.restore(
        str(copied), stumbles, resume_errored=True, storage_filesystem=pafs.LocalFileSystem()
    )
    (result,) = tuner.fit()
    assert (result.error, result.metrics["resumed_at"]) == (None, 3)
    after = {c.name: tree_digest(c) for c in checkpoints(copied)}
    assert len(after) == STEPS
    assert after.items() >= before.items()
    manifests = copied.glob(".tune_sync/manifests/*/*.json")
    assert sorted(path.stem for path in manifests) == sorted(before), "nothing of ours is written"


def test_what_ended_before_its_first_state_is_not_begun_without_its_space(
    local_ray: None, tmp_path: Path
) -> None:
    root, space = tmp_path / "x", {"settings": {"steps": 1}}
    config = RunConfig(name="x", storage_path=tmp_path, verbose=0)
    tune.Tuner(train_n, param_space=space, run_config=config)  # interrupted right after that
    assert tune.Tuner.can_restore(str(root))
    with pytest.raises(ConfigError, match=r"nothing to resume.*without its param_space"):
        tune.Tuner.restore(str(root), train_n).fit()
    assert not [*root.glob("train_n_*"), *root.glob("experiment_state*")]

    (result,) = tune.Tuner.restore(str(root), train_n, param_space=space).fit()
    assert (result.config, result.metrics["step"]) == (space, 0)


def break_state(copied: Path, change: Callable[[bytes], bytes | None]) -> None:
    for state in copied.glob("experiment_state-*.json"):
        content = change(state.read_bytes())
        if content is None:
            state.unlink()
        else:
            state.write_bytes(content)


def no_pickle(content: bytes) -> bytes:
    """A state whose JSON is fine and whose pickled parts are not."""
    found = re.sub(rb'\\"value\\": \\"8[0-9a-f]+', rb'\\"value\\": \\"00', content)
    assert found != content
    return found


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: None, "holds checkpoints, but no experiment_state"),
        (lambda content: b"", "experiment_state-.*json is not readable"),
        (lambda content: content[: len(content) // 2], "experiment_state-.*json is not readable"),
        (lambda content: b"[]", "experiment_state-.*json is not readable"),
        (lambda content: b"[" * 100_000, "experiment_state-.*json is not readable"),
        (no_pickle, "did not restore trials .* was about to start afresh"),
    ],
)
def test_an_unreadable_experiment_state_is_an_error_and_starts_nothing(
    copied: Path, local_ray: None, change: Callable[[bytes], bytes | None], says: str
) -> None:
    break_state(copied, change)
    before = visible(copied)
    tuner = tune.Tuner.restore(str(copied), stumbles, resume_errored=True)
    with pytest.raises(DamagedError, match=says):
        tuner.fit()
    changed = {k for k, v in visible(copied).items() if before.get(k) != v}
    assert not [k for k in changed if "/" in k or k.startswith("experiment_state")]


def test_unreadable_metadata_of_ours_is_an_error_that_names_the_file(copied: Path) -> None:
    file = copied / ".tune_sync/format.json"
    for unreadable in ("{", "{}", "[]"):
        file.write_text(unreadable)
        tuner = tune.Tuner.restore(str(copied), stumbles, resume_errored=True)
        with pytest.raises(DamagedError, match=r"format.json is not readable"):
            tuner.fit()
    file.write_text(json.dumps({"format_version": 99}))
    tuner = tune.Tuner.restore(str(copied), stumbles, resume_errored=True)
    with pytest.raises(ConfigError, match=r"format version 99.*install the newer tune_sync"):
        tuner.fit()
    assert len(checkpoints(copied)) == 3


def test_the_ways_out_are_those_of_whoever_made_the_run(tmp_path: Path) -> None:
    here, bucket = Destination("/results", ""), Destination("bucket/x", "s3")
    own = SyncConfig(upload_dir="far", syncer=CallbackSyncer(print, print, print))
    found = {
        "Tuner": ways_out(SyncConfig(), here, RUN_CONFIG),
        "tune.run": ways_out(SyncConfig(), here, "tune"),
        "Train": ways_out(SyncConfig(), here, "train"),
        "bucket": ways_out(SyncConfig(), bucket, "tune"),
        "own": ways_out(own, here, RUN_CONFIG),
    }
    assert "Tuner.restore" in found["Tuner"] and "overwrite=True" in found["Tuner"]
    assert 'on_existing="resume") and tune.run(..., resume=True)' in found["tune.run"]
    assert 'run_config_kwargs(..., on_existing="move_aside")' in found["tune.run"]
    assert 'run_config_kwargs(..., api="train", on_existing="resume"), choose' in found["Train"]
    assert all("overwrite=True" not in found[kind] for kind in found if kind != "Tuner")
    assert all("delete it first" in found[kind] for kind in ("bucket", "own"))
