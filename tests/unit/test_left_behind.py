"""Staging that nobody sends from any more is found, sent as far as it is wanted, and removed."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.manifests import manifests_of
from tests.unit.test_damaged_on_the_way import Flipping
from tests.unit.test_node_sender import FIRST, SECOND, Shaky, report
from tune_sync import layout
from tune_sync.agents.left_on_nodes import Wanted, send_here
from tune_sync.agents.names import agent_name
from tune_sync.behind.left_behind import (
    Claim,
    LeftBehind,
    find,
    mark_as,
    move_to_disk,
    remove_sent,
    send_left,
)
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.behind.staged_send import DamagedOnWayError
from tune_sync.behind.staging_home import StagingHome
from tune_sync.behind.staging_roots import staging_root, staging_roots
from tune_sync.behind.staging_sweep import LEFT_AGE_S, MEMORY_AGE_S, sweep_memory, sweep_old
from tune_sync.errors import StoreDeniedError, StoreUnreachableError
from tune_sync.homes.digests import READ_BYTES
from tune_sync.homes.home import LocalHome
from tune_sync.homes.saved_state import TrialNames
from tune_sync.spec import Options, Spec
from tune_sync.transfer.upload import CheckpointUpload

OWNER, NODE, WHERE = "0" * 32, "node1", "s3://bucket/results/exp"


class NoAgent:
    """Nothing is sent."""

    def has_room(self) -> bool:
        return True

    def make_room(self) -> None:
        pass

    def wake(self) -> None:
        pass

    def is_settled(self, attempt: str) -> bool:
        return False


@pytest.fixture
def home(tmp_path: Path) -> Shaky:
    return Shaky(tmp_path / "home")


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    return tmp_path / "staging"


@pytest.fixture
def root(staging: Path) -> Path:
    return staging / OWNER / NODE


def leave(root: Path, *checkpoints: str, ranks_count: int = 1, begun_by: str = "") -> None:
    """What a node has of checkpoints whose reports have returned, when it crashes."""
    for checkpoint in checkpoints:
        local = StagingHome(LocalHome(root.parents[2] / "away"), root, NoAgent(), NODE)
        report(local, checkpoint, checkpoint.encode(), ranks_count)
    Claim(root, WHERE, begun_by)  # its lock goes with it, as with its process


def sent(left: LeftBehind, home: Shaky, wanted: Any) -> list[str]:
    with left.taken() as is_free:
        assert is_free
        return send_left(left, home, wanted)


def recovered(home: Shaky) -> dict[str, bytes]:
    home.committer.recover()
    return {m.checkpoint: (home.root / m.checkpoint / "two").read_bytes()
            for m in manifests_of(home.committer)}  # fmt: skip


def test_what_was_reported_is_sent_and_published_and_nothing_stays(
    staging: Path, root: Path, home: Shaky
) -> None:
    leave(root, FIRST, SECOND)
    (left,) = find(staging)
    assert (left.where, left.owner, left.node) == (WHERE, OWNER, NODE)
    assert sent(left, home, lambda checkpoint: True) == [FIRST, SECOND]
    assert not root.parent.exists()
    assert recovered(home) == {FIRST: FIRST.encode(), SECOND: SECOND.encode()}
    assert find(staging) == []


def test_whoever_waits_for_what_is_sent_hears_as_it_is_read_and_as_it_goes(
    staging: Path, root: Path, home: Shaky
) -> None:
    """Reading a large one, which nobody has read before, takes minutes."""
    local = StagingHome(LocalHome(root.parents[2] / "away"), root, NoAgent(), NODE)
    given, size_count = local.make_directory(), 5
    assert given is not None
    (given / "large").write_bytes(bytes(size_count * READ_BYTES))
    upload = CheckpointUpload(local, FIRST, 0)
    upload.add_file("large", given / "large", is_given=True)
    upload.copied(1)
    assert upload.seal()
    Claim(root, WHERE)
    (left,), moved = find(staging), list[None]()
    with left.taken():
        assert send_left(left, home, lambda c: True, lambda: moved.append(None)) == [FIRST]
    of_checkpoint, of_file, of_chunk = 1, 1, 1
    assert len(moved) == of_checkpoint + size_count + of_file + of_chunk


def test_what_arrives_damaged_is_sent_again_and_stays_if_that_is_of_no_use(
    staging: Path, root: Path, tmp_path: Path
) -> None:
    leave(root, FIRST)
    (left,) = find(staging)
    far = Flipping(tmp_path / "far")
    far.flips_count = 1000
    with left.taken(), pytest.raises(DamagedOnWayError, match=f"{FIRST}.*intact on its node"):
        send_left(left, far, lambda checkpoint: True)
    assert len(find(staging)) == 1
    far.flips_count = 1
    with left.taken():
        assert send_left(left, far, lambda checkpoint: True) == [FIRST]
    assert not root.parent.exists()


def test_what_is_not_wanted_any_more_is_removed(staging: Path, root: Path, home: Shaky) -> None:
    leave(root, FIRST, SECOND)
    (left,) = find(staging)
    assert sent(left, home, Wanted(frozenset(), {"t": FIRST})) == [SECOND]
    assert not root.parent.exists()
    assert recovered(home) == {SECOND: SECOND.encode()}


def test_what_is_of_another_experiment_stays(staging: Path, root: Path, home: Shaky) -> None:
    leave(root, FIRST)
    (left,) = find(staging)
    assert sent(left, home, Wanted(frozenset({TrialNames("abc_00000")}), {"other": FIRST})) == []
    assert len(find(staging)) == 1
    assert not home.root.exists()


def test_half_a_report_is_not_sent(staging: Path, root: Path, home: Shaky) -> None:
    leave(root, FIRST)
    for seal in root.rglob("seal.json"):
        seal.unlink()
    (left,) = find(staging)
    assert sent(left, home, lambda checkpoint: True) == []
    assert root.exists(), "its writer lives: it is this process"
    for writer in root.rglob("writer.json"):
        writer.write_text(writer.read_text().replace(f'"pid": {os.getpid()}', '"pid": 4194000'))
    assert sent(left, home, lambda checkpoint: True) == []
    assert not root.parent.exists()


def test_a_destination_that_is_away_costs_nothing(staging: Path, root: Path, home: Shaky) -> None:
    leave(root, FIRST, SECOND)
    (left,) = find(staging)
    home.is_up = False
    with pytest.raises(StoreUnreachableError):
        sent(left, home, lambda checkpoint: True)
    home.is_up = True
    assert sent(left, home, lambda checkpoint: True) == [FIRST, SECOND]


@pytest.mark.parametrize("newest", [FIRST, ""])
def test_what_was_stored_before_is_sent_again_only_if_it_was_lost_there(
    staging: Path, root: Path, home: Shaky, newest: str
) -> None:
    leave(root, FIRST)
    (seal,) = root.rglob("seal.json")
    (seal.parent / "stored.json").write_text('{"attempt": "there"}')
    (left,) = find(staging)
    assert sent(left, home, Wanted(frozenset(), {"t": newest})) == ([] if newest else [FIRST])
    assert not root.parent.exists()


def test_what_an_agent_uses_is_not_taken(staging: Path, root: Path) -> None:
    leave(root, FIRST)
    claim = Claim(root, WHERE)
    (left,) = find(staging)
    with left.taken() as is_free:
        assert not is_free
    assert sweep_old(staging, time.time() + 10 * LEFT_AGE_S) == []
    del claim
    with left.taken() as is_free:
        assert is_free


@pytest.fixture
def unmarked(staging: Path) -> Iterator[Path]:
    """What is not ours, in the same directory."""
    (staging / "mine" / "too").mkdir(parents=True)
    (staging / "mine" / "too" / "file").write_text("mine")
    yield staging / "mine" / "too" / "file"


def test_what_nobody_comes_back_for_goes_after_its_time(
    staging: Path, root: Path, unmarked: Path
) -> None:
    leave(root, FIRST)
    assert sweep_old(staging, time.time() + LEFT_AGE_S - 60) == []
    assert (root / layout.STAGING_DIR / FIRST).exists()
    assert sweep_old(staging, time.time() + LEFT_AGE_S + 60) == [root]
    assert not root.parent.exists()
    assert unmarked.exists()


def test_an_agent_that_lives_keeps_its_directory_young(staging: Path, root: Path) -> None:
    claim = Claim(root, WHERE)
    (mark,) = root.rglob("staged_for.json")
    os.utime(mark, (1.0, 1.0))
    assert find(staging)[0].seen_s == 1.0
    claim.renew()
    assert find(staging)[0].seen_s > 1.0


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"experiment": '])
def test_a_mark_that_cannot_be_read_is_left_alone(staging: Path, root: Path, body: str) -> None:
    leave(root, FIRST)
    (mark,) = root.rglob("staged_for.json")
    mark.write_text(body)
    assert find(staging) == []
    assert sweep_old(staging, time.time() + 10 * LEFT_AGE_S) == []


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "shm" / OWNER / NODE


def test_what_is_left_in_memory_moves_to_the_disk_and_is_sent_from_there(
    staging: Path, memory: Path, root: Path, home: Shaky
) -> None:
    leave(root, FIRST)
    leave(memory, SECOND)
    folder, now_s = memory.parents[1], time.time()
    assert sweep_memory(folder, staging, now_s) == []
    with find(folder)[0].taken():
        assert sweep_memory(folder, staging, now_s + 2 * MEMORY_AGE_S) == []
    assert sweep_memory(folder, staging, now_s + 2 * MEMORY_AGE_S) == [root]
    assert not list(folder.iterdir())
    (left,) = find(staging)
    assert (left.where, left.owner, left.node) == (WHERE, OWNER, NODE)
    assert sent(left, home, lambda checkpoint: True) == [FIRST, SECOND]
    assert recovered(home) == {FIRST: FIRST.encode(), SECOND: SECOND.encode()}


def test_what_finds_no_room_on_the_disk_stays_in_memory(memory: Path, tmp_path: Path) -> None:
    leave(memory, FIRST)
    (tmp_path / "file").write_text("no directory can be made below it")
    assert not move_to_disk(memory, tmp_path / "file" / OWNER / NODE)
    assert list(memory.rglob("two"))


class Reached:
    """Reaches the destination."""

    def __init__(self, home: Shaky) -> None:
        self._home = home

    def home(self, spec: Spec) -> Shaky:
        return self._home


def test_a_node_sends_what_is_of_the_experiment_and_has_no_agent(
    staging: Path, root: Path, home: Shaky, tmp_path: Path
) -> None:
    options = Options(staging_dir=str(staging), memory_dir=str(tmp_path))
    memory = staging_roots(options)[0] / OWNER / NODE
    spec = Spec("key", "bucket/results", "exp", "1" * 32, None, options, "s3")
    assert spec.where == WHERE
    leave(root, FIRST)
    wanted, plain = Wanted(frozenset(), {"t": ""}), spec.to_plain()
    busy = agent_name(replace(spec, owner=OWNER), NODE)
    other = replace(spec, experiment="other").to_plain()
    assert send_here(plain, Reached(home), wanted, [busy]) == ([], "")
    assert send_here(other, Reached(home), wanted, []) == ([], "")
    home.is_up = False
    sent, why = send_here(plain, Reached(home), wanted, [])
    assert (sent, str(root) in why, "does not answer" in why) == ([], True, True)
    home.is_up = True
    leave(memory, SECOND)
    assert send_here(plain, Reached(home), wanted, []) == ([SECOND, FIRST], "")
    assert send_here(plain, Reached(home), wanted, []) == ([], "")


@pytest.mark.parametrize(
    ("had", "has", "is_sent"),
    [("a", "a", True), ("a", "b", False), ("", "b", True), ("a", "", True)],
)
def test_what_is_left_of_another_experiment_of_the_same_place_is_named_and_stays(
    staging: Path, root: Path, home: Shaky, caplog: pytest.LogCaptureFixture,
    had: str, has: str, *, is_sent: bool,
) -> None:  # fmt: skip
    """One that was moved aside, or deleted, had trials of these names. Older versions tell none."""
    options = Options(staging_dir=str(staging), memory_dir=str(staging.parent))
    spec = Spec("key", "bucket/results", "exp", "1" * 32, None, options, "s3", begun_by=has)
    memory = staging_roots(options)[0] / OWNER / NODE
    leave(memory, FIRST, begun_by=had)
    assert move_to_disk(memory, root)
    wanted = Wanted(frozenset(), {"t": ""})
    assert send_here(spec.to_plain(), Reached(home), wanted, []) == ([FIRST] * is_sent, "")
    assert root.exists() != is_sent
    assert (f"{root} keeps what was reported in 't'" in caplog.text) != is_sent


def test_a_claim_on_what_was_removed_is_for_this_user_alone(tmp_path: Path) -> None:
    root = tmp_path / "tune_sync-0" / "run"
    claim = Claim(root, "exp")
    shutil.rmtree(root.parent)
    claim.renew()
    assert (root / layout.INTERNAL_DIR).is_dir()
    assert root.parent.stat().st_mode & 0o777 == 0o700


def test_only_this_user_reads_what_is_staged_below_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    root = staging_root("")
    assert root.parent == tmp_path and root.stat().st_mode & 0o777 == 0o700
    assert staging_root("") == root
    assert staging_root("/mnt/disk") == Path("/mnt/disk")


def test_a_staging_directory_that_somebody_else_laid_out_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "theirs").mkdir()
    Path(tmp_path, f"tune_sync-{os.getuid()}").symlink_to(tmp_path / "theirs")
    with pytest.raises(StoreDeniedError, match="staging_dir"):
        staging_root("")


def test_whose_a_directory_is_can_be_said_before_its_agent_is_there(tmp_path: Path) -> None:
    root = tmp_path / "staging" / "run" / "node"
    mark = mark_as(root, "the experiment")
    assert mark_as(root, "another") == mark
    (found,) = find(tmp_path / "staging")
    assert (found.where, found.root) == ("the experiment", root)
    assert [path.name for path in mark.parent.iterdir()] == [mark.name]


def test_who_ends_after_the_drivers_death_leaves_what_was_reported_last(
    staging: Path, root: Path, home: Shaky, memory: Path
) -> None:
    """Its trial lived longer, and reported after the agent had said that nothing was left."""
    leave(root, FIRST)
    (attempt,) = [attempt for _, attempt in StagedCopies(root).attempts()]
    StagedCopies(root).stored(FIRST, attempt, "sent")
    leave(memory, SECOND)
    assert not remove_sent([root, memory])
    assert not root.exists()
    assert [checkpoint for checkpoint, _ in StagedCopies(memory).attempts()] == [SECOND]
    (attempt,) = [attempt for _, attempt in StagedCopies(memory).attempts()]
    StagedCopies(memory).stored(SECOND, attempt, "sent")
    assert remove_sent([root, memory])
    assert not memory.exists()


def test_half_a_report_is_not_left(root: Path) -> None:
    store = LocalHome(root).store
    store.make_dir(layout.staged_key(FIRST, "0" * 32))
    store.write_at(f"{layout.staged_key(FIRST, '0' * 32)}/one", 0, b"half")
    assert remove_sent([root])
    assert not root.exists()
