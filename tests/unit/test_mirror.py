"""What a mirror sends, in which order, and what it says when it cannot."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.staged import placed
from tune_sync import layout
from tune_sync.errors import LeaseLostError, NotStoredError
from tune_sync.mirror.mirror import Mirror
from tune_sync.mirror.outbox import PARCELS_DIR, RETRIES, join_remote
from tune_sync.mirror.record import RECORD_KEY
from tune_sync.run import Run
from tune_sync.syncers.base import Syncer

TIMEOUT_S = 60.0
STATE = "experiment_state-2026.json"
NO_TRIALS = json.dumps({"trial_data": []})


class Notebook(Syncer):
    """Copies at once, as a syncer with nothing but the abstract methods does, and takes notes.

    Args:
        top: The remote directory.
    """

    def __init__(self, top: Path) -> None:
        super().__init__(sync_timeout=TIMEOUT_S)
        self.top = top
        self.notes: list[str] = []
        self.fails: Callable[[str], bool] = lambda note: False
        self.stops: Callable[[str], bool] = lambda note: False
        self.failing_downloads_count = 0
        self.stopped = threading.Event()
        self.go_on = threading.Event()
        self.closed_count = 0
        self.state_at_delete: list[str] = []

    def sync_up(self, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        names = sorted(p.name for p in Path(local_dir).rglob("*") if p.is_file())
        self._note("up", remote_dir, *names)
        shutil.copytree(local_dir, remote_dir, dirs_exist_ok=True)
        return True

    def sync_down(self, remote_dir: str, local_dir: str, exclude: list[str] | None = None) -> bool:
        if self.failing_downloads_count:
            self.failing_downloads_count -= 1
            raise OSError("no way back")
        shutil.copytree(remote_dir, local_dir, dirs_exist_ok=True)
        return True

    def delete(self, remote_dir: str) -> bool:
        self._note("delete", remote_dir)
        if (self.top / STATE).exists():
            self.state_at_delete.append((self.top / STATE).read_text())
        shutil.rmtree(remote_dir)
        return True

    def close(self) -> None:
        self.closed_count += 1

    def _note(self, verb: str, remote_dir: str, *names: str) -> None:
        where = Path(remote_dir).relative_to(self.top).as_posix()
        note = " ".join([verb, where, *names])
        if self.stops(note):
            self.stopped.set()
            assert self.go_on.wait(TIMEOUT_S)
        if self.fails(note):
            raise OSError(f"no way to {where}")
        self.notes.append(note)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "home/exp"


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return tmp_path / "remote/exp"


@pytest.fixture
def syncer(remote: Path) -> Notebook:
    return Notebook(remote)


def start(root: Path, runs: list[Run], syncer: Notebook, on_existing: str = "error") -> Run:
    run = Run.open(root, on_existing, TIMEOUT_S, 1)
    run.begun = True
    runs.append(run)
    mirror = Mirror(root, str(syncer.top), syncer, 1000.0, 0.0, run.lease.check, backoff_s=0.01)
    mirror.begin(run.home.published_keys())
    run.watch(mirror)
    return run


def publish(run: Run, number: int, data: bytes = b"1") -> str:
    checkpoint = f"trial/{layout.checkpoint_name(number)}"
    manifest = placed(run.home.committer, {"a": data}, checkpoint)
    run.note_latest(checkpoint)
    run.publisher.record_later(manifest)
    run.publisher.drain(TIMEOUT_S)
    return checkpoint


def write_state(run: Run, text: str) -> None:
    run.versions.made()
    arrived = run.versions.copying()
    fresh = Path(run.root, ".fresh")
    fresh.write_text(text)
    fresh.replace(Path(run.root, STATE))
    arrived()
    run.state_written()


def test_a_checkpoint_goes_first_then_its_manifest_then_the_state(
    root: Path, runs: list[Run], syncer: Notebook
) -> None:
    run = start(root, runs, syncer)
    syncer.stops = lambda note: note.startswith("up trial/")
    publish(run, 0)
    assert syncer.stopped.wait(TIMEOUT_S)
    write_state(run, '["names checkpoint 0"]')
    syncer.go_on.set()
    run.flush(TIMEOUT_S)
    assert (
        re.sub("[0-9a-f]{32}", "ID", syncer.notes.pop(0))
        == "up .tune_sync/mirror/marks/ID mark.json"
    )
    assert syncer.notes == [
        "up .tune_sync format.json mark.json",
        "up trial/checkpoint_000000 a",
        "up .tune_sync/manifests checkpoint_000000.json",
        f"up .tune_sync/mirror/state digests.json {STATE}",
        f"up . {STATE}",
    ]
    assert (syncer.top / STATE).read_text() == '["names checkpoint 0"]'
    key = layout.manifest_key("trial/checkpoint_000000")
    assert (syncer.top / key).read_bytes() == (root / key).read_bytes()
    assert not list((root / PARCELS_DIR).iterdir())


def test_what_is_deleted_at_home_goes_after_a_state_that_does_not_name_it(
    root: Path, runs: list[Run], syncer: Notebook
) -> None:
    run = start(root, runs, syncer)
    old = publish(run, 0)
    write_state(run, "names 0")
    run.flush(TIMEOUT_S)
    syncer.stops = lambda note: note.startswith("up trial/checkpoint_000001")
    publish(run, 1)
    assert syncer.stopped.wait(TIMEOUT_S)
    run.retire_later(old)
    write_state(run, "may still name 0")
    write_state(run, "names 1 alone")
    run.publisher.settle(TIMEOUT_S)
    assert not (root / old).exists()
    assert (syncer.top / old).exists()
    syncer.go_on.set()
    run.flush(TIMEOUT_S)
    assert not (syncer.top / old).exists()
    assert syncer.state_at_delete == ["names 1 alone"]


def test_a_checkpoint_that_is_being_sent_stays_at_home_until_then(
    root: Path, runs: list[Run], syncer: Notebook
) -> None:
    run = start(root, runs, syncer)
    syncer.stops = lambda note: note.startswith("up trial/checkpoint_000000")
    old = publish(run, 0)
    assert syncer.stopped.wait(TIMEOUT_S)
    publish(run, 1)
    run.retire_later(old)
    write_state(run, "first")
    write_state(run, "second")
    run.publisher._deletes.wait(0.2)
    assert (root / old).exists()
    syncer.go_on.set()
    run.flush(TIMEOUT_S)
    assert not (root / old).exists()
    assert not (syncer.top / old).exists()
    assert (syncer.top / "trial/checkpoint_000001/a").exists()


def test_what_was_deleted_before_its_turn_is_never_sent_and_states_coalesce(
    root: Path, runs: list[Run], syncer: Notebook
) -> None:
    run = start(root, runs, syncer)
    syncer.stops = lambda note: note.startswith("up trial/checkpoint_000000")
    publish(run, 0)
    assert syncer.stopped.wait(TIMEOUT_S)
    for number in range(1, 4):
        publish(run, number)
        if number > 1:
            run.retire_later(f"trial/{layout.checkpoint_name(number - 1)}")
        for _ in range(2):
            write_state(run, f"state {number}")
    run.publisher._deletes.wait(TIMEOUT_S)
    syncer.go_on.set()
    run.flush(TIMEOUT_S)
    sent = [note for note in syncer.notes if note.startswith("up trial/")]
    assert sent == ["up trial/checkpoint_000000 a", "up trial/checkpoint_000003 a"]
    assert syncer.notes.count(f"up . {STATE}") <= 2
    assert (syncer.top / STATE).read_text() == "state 3"


def test_the_state_waits_for_a_checkpoint_that_fails_and_the_others_go_on(
    root: Path, runs: list[Run], syncer: Notebook
) -> None:
    run = start(root, runs, syncer)
    syncer.fails = lambda note: "checkpoint_000001" in note
    for number in range(3):
        publish(run, number)
    write_state(run, "names all")
    with pytest.raises(NotStoredError) as failure:
        run.flush(TIMEOUT_S)
    for part in (str(syncer.top), "trial/checkpoint_000001", "no way to", "restore from there"):
        assert part in str(failure.value)
    assert not (syncer.top / STATE).exists()
    assert (syncer.top / "trial/checkpoint_000002/a").exists()
    assert not (syncer.top / layout.manifest_key("trial/checkpoint_000001")).exists()

    syncer.fails = lambda note: False
    run.flush(TIMEOUT_S)
    assert (syncer.top / STATE).exists()
    assert (syncer.top / layout.manifest_key("trial/checkpoint_000001")).exists()


def test_files_of_trials_go_along_without_checkpoints_and_what_is_on_its_way(
    root: Path, runs: list[Run], syncer: Notebook
) -> None:
    run = start(root, runs, syncer)
    inner = root / "trial/train-x/.tune_sync"
    for path in ("manifests/checkpoint_000000.json", "staging/x/data", "lease.json"):
        (inner / path).parent.mkdir(parents=True, exist_ok=True)
        (inner / path).write_text("{}")
    (root / "trial/checkpoint_000009").mkdir()
    (root / "trial/checkpoint_000009/half").write_text("not published")
    (root / "trial/plots").mkdir()
    (root / "trial/plots/a b.png").write_text("*")
    run.flush(TIMEOUT_S)
    assert [note for note in syncer.notes if "plots" in note or "a b.png" in note] == [
        "up . a b.png checkpoint_000000.json"
    ]
    assert not (syncer.top / "trial/checkpoint_000009").exists()
    (root / "trial/plots/a b.png").write_text("**")
    run.flush(TIMEOUT_S)
    assert (syncer.top / "trial/plots/a b.png").read_text() == "**"


def test_files_of_trials_that_failed_to_go_do_so_with_the_next_round(
    root: Path, runs: list[Run], syncer: Notebook
) -> None:
    tried, is_sent = [], threading.Event()

    def fails(note: str) -> bool:
        if "result.json" not in note:
            return False
        tried.append(note)
        is_late = len(tried) > RETRIES + 1
        if is_late:
            is_sent.set()
        return not is_late

    syncer.fails = fails
    run = Run.open(root, "error", TIMEOUT_S, 1)
    runs.append(run)
    mirror = Mirror(root, str(syncer.top), syncer, 1000.0, 0.0, run.lease.check, backoff_s=0.01)
    mirror._files_due_s = 0.0
    (root / "trial").mkdir()
    (root / "trial/result.json").write_text("{}")
    mirror.begin([])
    try:
        assert is_sent.wait(TIMEOUT_S)
    finally:
        mirror.close()


def test_a_restore_knows_what_is_there_and_deletes_what_was_deleted_since(
    root: Path, runs: list[Run], syncer: Notebook
) -> None:
    run = start(root, runs, syncer)
    for number in range(3):
        publish(run, number)
    write_state(run, NO_TRIALS)
    run.flush(TIMEOUT_S)
    run.close()
    run.close()
    assert syncer.closed_count == 1
    shutil.rmtree(root / "trial/checkpoint_000000")
    syncer.notes.clear()

    run = start(root, runs, syncer, "resume")
    publish(run, 3)
    run.flush(TIMEOUT_S)
    assert sorted(n for n in syncer.notes if "trial" in n) == [
        "delete trial/checkpoint_000000", "up trial/checkpoint_000003 a"
    ]  # fmt: skip
    record = json.loads((root / RECORD_KEY).read_text())
    assert record["whole"] == [f"trial/checkpoint_00000{n}" for n in (1, 2, 3)]


def test_a_run_that_lost_its_lease_sends_nothing_more(
    root: Path, runs: list[Run], syncer: Notebook
) -> None:
    run = start(root, runs, syncer)
    lost = threading.Event()
    mirror = Mirror(
        root, str(syncer.top), syncer, 1000.0, 0.0, lambda: _raise_if(lost), backoff_s=0.01
    )
    mirror.begin([])
    lost.set()
    (root / STATE).write_text("{}")
    with pytest.raises(NotStoredError, match="another run"):
        mirror.flush()
    mirror.close()
    assert f"up . {STATE}" not in syncer.notes
    assert run.lease is not None


def _raise_if(lost: threading.Event) -> None:
    if lost.is_set():
        raise LeaseLostError("another run took over")


def test_a_sync_that_hangs_ends_the_wait_and_is_named(
    root: Path, runs: list[Run], syncer: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tune_sync.mirror.mirror.GRACE_S", 0.5)
    syncer.sync_timeout = 0.0
    run = start(root, runs, syncer)
    syncer.stops = lambda note: note.startswith("up trial/")
    publish(run, 0)
    with pytest.raises(NotStoredError, match=r"checkpoint_000000 not there: nothing was sent"):
        run.flush(TIMEOUT_S)
    syncer.go_on.set()


@pytest.mark.parametrize(
    ("remote", "joined"),
    [
        ("s3://b/x", "s3://b/x/t/c"),
        ("s3://b/x/", "s3://b/x/t/c"),
        ("s3://b/x?region=y", "s3://b/x/t/c?region=y"),
        ("host:/a?b", "host:/a?b/t/c"),
        ("/", "/t/c"),
    ],
)
def test_remote_directories_are_joined(remote: str, joined: str) -> None:
    assert join_remote(remote, "t/c") == joined
    assert join_remote(remote, "") == remote
