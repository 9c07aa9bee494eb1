"""What comes back from a mirror: whole checkpoints, a whole state, or an error."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.local.own_syncers import copying
from tests.unit.test_mirror import (
    NO_TRIALS,
    STATE,
    TIMEOUT_S,
    Notebook,
    publish,
    start,
    write_state,
)
from tune_sync import CallbackSyncer, fetch_experiment, layout
from tune_sync.errors import (
    ConfigError,
    DamagedError,
    ExperimentExistsError,
    StoreDeniedError,
    StoreError,
)
from tune_sync.homes.store import LocalStore
from tune_sync.mirror.record import MIRROR_DIR, RECORD_KEY
from tune_sync.mirror.state import STATE_DIR
from tune_sync.run import Run

OLD, NEW = "trial/checkpoint_000000", "trial/checkpoint_000001"


@pytest.fixture
def mirrored(tmp_path: Path, runs: list[Run]) -> Notebook:
    """The syncer of a finished run with two checkpoints; its `top` is the mirror."""
    syncer = Notebook(tmp_path / "remote/exp")
    run = start(tmp_path / "home/exp", runs, syncer)
    for number in range(2):
        publish(run, number, b"bytes")
    write_state(run, NO_TRIALS)
    run.flush(TIMEOUT_S)
    run.close()
    return syncer


PICKLED = "basic-variant-state-2026-11-30_10-00-00.json"  # as Ray calls it


def fetch(syncer: Notebook, tmp_path: Path) -> Path:
    return fetch_experiment(syncer.top, tmp_path / "copy/exp", syncer)


def test_a_copy_may_have_any_name_that_an_experiment_can_have(
    mirrored: Notebook, tmp_path: Path
) -> None:
    copy = fetch_experiment(mirrored.top, tmp_path / "copy" / ("e" * 255), mirrored)
    assert (copy / STATE).read_text() == NO_TRIALS
    assert os.listdir(copy.parent) == [copy.name]


def test_all_comes_back_and_the_next_run_sends_only_what_is_new(
    mirrored: Notebook, tmp_path: Path, runs: list[Run]
) -> None:
    copy = fetch(mirrored, tmp_path)
    assert [(copy / key / "a").read_bytes() for key in (OLD, NEW)] == [b"bytes"] * 2
    assert (copy / STATE).read_text() == NO_TRIALS
    assert os.listdir(copy.parent) == ["exp"]
    mirrored.notes.clear()
    run = start(copy, runs, mirrored, "resume")
    publish(run, 2)
    run.flush(TIMEOUT_S)
    assert [n for n in mirrored.notes if "trial" in n] == ["up trial/checkpoint_000002 a"]


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:3])


@pytest.mark.parametrize(
    "damage",
    [
        lambda top: cut_off(top / NEW / "a"),
        lambda top: (top / NEW / "a").unlink(),
        lambda top: (top / NEW / "a").write_bytes(b"BYTES"),
        lambda top: (top / layout.manifest_key(NEW)).unlink(),
        lambda top: cut_off(top / layout.manifest_key(NEW)),
        lambda top: shutil.copy(top / layout.manifest_key(OLD), top / layout.manifest_key(NEW)),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_left_out_and_known_to_be_there_in_part(
    mirrored: Notebook, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    damage(mirrored.top)
    copy = fetch(mirrored, tmp_path)
    assert (copy / OLD).is_dir()
    assert not (copy / NEW).exists()
    assert not (copy / layout.manifest_key(NEW)).exists()
    record = json.loads((copy / RECORD_KEY).read_text())
    assert (record["touched"], record["whole"]) == ([OLD, NEW], [OLD])


def test_a_download_that_makes_a_file_leaves_nothing(tmp_path: Path) -> None:
    class Portal(CallbackSyncer):
        def sync_down(
            self, remote_dir: str, local_dir: str, exclude: list[str] | None = None
        ) -> bool:
            Path(local_dir).write_text("<html>please log in</html>")
            return True

    with pytest.raises(FileNotFoundError, match="holds no experiment"):
        fetch_experiment("far/x", tmp_path / "copy", syncer=Portal(print, print, print))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("torn", ["", f"{STATE_DIR}/"])
def test_of_two_states_the_one_that_is_not_torn_is_taken(
    mirrored: Notebook, tmp_path: Path, torn: str
) -> None:
    cut_off(mirrored.top / f"{torn}{STATE}")
    assert (fetch(mirrored, tmp_path) / STATE).read_text() == NO_TRIALS


@pytest.mark.parametrize("name", ["tuner.pkl", "trainable.pkl", STATE, PICKLED])
@pytest.mark.parametrize("kept", [0, 3, 50, -1])
def test_state_that_is_cut_off_is_named_and_nothing_stays(
    mirrored: Notebook, tmp_path: Path, name: str, kept: int
) -> None:
    shutil.rmtree(mirrored.top / STATE_DIR)
    whole = {"a": "b" * 99, "of": [1.5] * 9}
    data = json.dumps(whole).encode() if name == STATE else pickle.dumps(whole)
    (mirrored.top / name).write_bytes(data)
    assert (fetch(mirrored, tmp_path) / name).read_bytes() == data
    shutil.rmtree(tmp_path / "copy")
    (mirrored.top / name).write_bytes(data[:kept])
    with pytest.raises(DamagedError, match=rf"{mirrored.top}/{name} is not whole.*fetch it again"):
        fetch(mirrored, tmp_path)
    assert os.listdir(tmp_path / "copy") == []


@pytest.mark.parametrize("data", [b"PK\x03\x04 of torch", b'{"json": 1}', b"\x1f\x8b gzip"])
def test_a_searcher_of_the_users_saves_what_it_likes(
    mirrored: Notebook, tmp_path: Path, data: bytes
) -> None:
    name = "searcher-state-2026-11-30_10-00-00.pkl"
    (mirrored.top / name).write_bytes(data)
    assert (fetch(mirrored, tmp_path) / name).read_bytes() == data


def test_a_syncer_that_breaks_off_is_told(mirrored: Notebook, tmp_path: Path) -> None:
    def wait() -> None:
        raise GeneratorExit

    mirrored.wait = wait  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="broke off: GeneratorExit"):
        fetch(mirrored, tmp_path)
    assert os.listdir(tmp_path / "copy") == []


def test_a_state_that_did_not_reach_its_place_is_found_beside_it(
    tmp_path: Path, runs: list[Run]
) -> None:
    syncer = Notebook(tmp_path / "remote/exp")
    run = start(tmp_path / "home/exp", runs, syncer)
    run.flush(TIMEOUT_S)
    syncer.fails = lambda note: note.startswith(f"up . {STATE}")
    write_state(run, '"newest"')
    with pytest.raises(Exception, match="no way to"):
        run.flush(TIMEOUT_S)
    assert not (syncer.top / STATE).exists()
    # A retry does not write what is whole again: it could be cut off.
    beside = [note for note in syncer.notes if note.startswith(f"up {STATE_DIR}")]
    assert len(beside) == 1
    assert (fetch(syncer, tmp_path) / STATE).read_text() == '"newest"'


REFUSED = ("tuner.pkl", ".validate_storage_marker")


def refused_start(mirrored: Notebook, runs: list[Run], root: Path) -> None:
    with pytest.raises(ExperimentExistsError):
        start(root, runs, mirrored)
    for run in runs:
        run.give_back()
    for name in REFUSED:
        (root / name).touch()


def test_a_refused_start_is_not_in_the_way(
    mirrored: Notebook, tmp_path: Path, runs: list[Run]
) -> None:
    refused_start(mirrored, runs, tmp_path / "copy/exp")
    copy = fetch(mirrored, tmp_path)
    assert (copy / OLD).is_dir()
    assert not any((copy / name).exists() for name in REFUSED)
    assert os.listdir(copy.parent) == ["exp"]


@pytest.mark.parametrize("more", ["notes.txt", STATE, f"{layout.INTERNAL_DIR}/manifests/t/c.json"])
def test_what_holds_more_than_a_refused_start_is_kept(
    mirrored: Notebook, tmp_path: Path, runs: list[Run], more: str
) -> None:
    root = tmp_path / "copy/exp"
    refused_start(mirrored, runs, root)
    (root / more).parent.mkdir(parents=True, exist_ok=True)
    (root / more).touch()
    with pytest.raises(FileExistsError, match="never mixed"):
        fetch(mirrored, tmp_path)
    assert (root / more).exists()


def test_a_run_that_is_alive_there_is_in_the_way(
    mirrored: Notebook, tmp_path: Path, runs: list[Run]
) -> None:
    with pytest.raises(ExperimentExistsError):
        start(tmp_path / "copy/exp", runs, mirrored)
    with pytest.raises(FileExistsError, match="never mixed"):
        fetch(mirrored, tmp_path)


def test_what_is_no_mirror_or_cannot_be_restored_leaves_nothing_behind(
    mirrored: Notebook, tmp_path: Path
) -> None:
    for path in (mirrored.top / STATE, mirrored.top / STATE_DIR / STATE):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"no experiment_state-\*\.json"):
        fetch(mirrored, tmp_path)
    (mirrored.top / MIRROR_DIR / "mark.json").unlink()
    with pytest.raises(FileNotFoundError, match="no experiment that tune_sync has sent"):
        fetch(mirrored, tmp_path)
    with pytest.raises(ConfigError, match="a Syncer is needed"):
        fetch_experiment(mirrored.top, tmp_path / "copy/exp", None)  # type: ignore[arg-type]
    assert os.listdir(tmp_path / "copy") == []


def test_a_fetched_experiment_is_never_mixed_with_another(
    mirrored: Notebook, tmp_path: Path
) -> None:
    (tmp_path / "copy/exp").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="never mixed"):
        fetch(mirrored, tmp_path)


def test_what_may_not_be_read_is_not_taken_for_half_a_checkpoint(
    mirrored: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a run that goes on from the copy would delete it there."""
    read = LocalStore.read

    def denied(store: LocalStore, key: str, *where: int) -> bytes:
        if key == layout.manifest_key(NEW):
            raise StoreDeniedError(f"user 65534 may not use {key}")
        return read(store, key, *where)

    monkeypatch.setattr(LocalStore, "read", denied)
    with pytest.raises(StoreDeniedError, match="000001"):
        fetch(mirrored, tmp_path)
    assert not (tmp_path / "copy/exp").exists()


def test_a_place_that_a_command_cannot_fetch_may_have_another_name(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"exit code 1.*is there an experiment of this name"):
        fetch_experiment(tmp_path / "far/exq", tmp_path / "copy/exq", copying())
