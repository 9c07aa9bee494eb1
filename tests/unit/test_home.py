"""The home of an experiment, on its own node."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.unit.staged import CHECKPOINT, sealed
from tune_sync import layout
from tune_sync.errors import (
    DamagedError,
    ImmutableError,
    LeaseLostError,
    NotWholeError,
    PathRefusedError,
)
from tune_sync.guard import attempt_root, staged_part
from tune_sync.homes import home as homes
from tune_sync.homes.digests import check_digest, digest_of
from tune_sync.homes.home import LocalHome, Piece
from tune_sync.homes.lease import Lease
from tune_sync.homes.shared.home import SharedHome
from tune_sync.layout import INCOMING_DIR, manifest_key, staged_key
from tune_sync.manifest import FileEntry, Seal


@pytest.fixture
def home(tmp_path: Path) -> LocalHome:
    (tmp_path / "root").mkdir()
    return LocalHome(tmp_path / "root")


def test_listing_leaves_out_what_is_ours(home: LocalHome) -> None:
    home.publish(CHECKPOINT, False, [sealed(home.committer, {"a": b"1", "sub/b": b"22"})])
    home.make_dir("trial/plots")
    assert [entry.key for entry in home.list("", False)] == ["trial"]
    found = {entry.key: entry.size_bytes for entry in home.list("", True) if not entry.is_dir}
    assert found == {f"{CHECKPOINT}/a": 1, f"{CHECKPOINT}/sub/b": 2}
    assert [entry.key for entry in home.list("trial", True) if entry.is_dir] == [
        CHECKPOINT, f"{CHECKPOINT}/sub", "trial/plots",
    ]  # fmt: skip


def test_a_batch_writes_many_files_and_their_directories(home: LocalHome) -> None:
    attempt = home.begin(CHECKPOINT)
    top = staged_key(CHECKPOINT, attempt)
    pieces = [Piece(f"{top}/a", 0, 2), Piece(f"{top}/d/e/b", 2, 0), Piece(f"{top}/d/e/c", 2, 3)]
    home.write_batch(pieces, b"11222")
    home.flush(top)
    assert (home.root / top / "a").read_bytes() == b"11"
    assert (home.root / top / "d/e/b").read_bytes() == b""
    assert (home.root / top / "d/e/c").read_bytes() == b"222"


def test_chunks_may_come_in_any_order(home: LocalHome) -> None:
    key = f"{staged_key(CHECKPOINT, home.begin(CHECKPOINT))}/sub/a"
    home.write(key, 3, b"456")
    home.write(key, 0, b"123")
    assert home.read(key, 0, 100) == b"123456"
    assert home.read(key, 2, 2) == b"34"


def test_what_comes_after_an_attempt_was_dropped_is_not_written(home: LocalHome) -> None:
    attempt = home.begin(CHECKPOINT)
    top = staged_key(CHECKPOINT, attempt)
    home.write(f"{top}/a", 0, b"1")
    home.discard_attempt(CHECKPOINT, attempt)
    for late in (
        lambda: home.write(f"{top}/a", 0, b"1"),
        lambda: home.write(f"{top}/sub/b", 0, b"1"),
        lambda: home.write_batch([Piece(f"{top}/c", 0, 1)], b"1"),
        lambda: home.link(f"{top}/a", f"{top}/d"),
    ):
        with pytest.raises(FileNotFoundError, match="too late"):
            late()
    with pytest.raises(NotWholeError):
        home.seal(CHECKPOINT, Seal(attempt, 0, 1.0, (FileEntry("a", 1, digest_of(b"1")),)))
    assert home.info(top) is None
    assert home.info(CHECKPOINT) is None


def test_what_comes_after_a_checkpoint_was_placed_changes_nothing(home: LocalHome) -> None:
    attempt = sealed(home.committer, {"a": b"1"})
    home.publish(CHECKPOINT, False, [attempt])
    with pytest.raises(FileNotFoundError):
        home.write(f"{staged_key(CHECKPOINT, attempt)}/a", 0, b"2")
    with pytest.raises(NotWholeError):
        home.seal(CHECKPOINT, Seal(attempt, 0, 2.0, ()))
    assert (home.root / CHECKPOINT / "a").read_bytes() == b"1"


def test_only_attempts_that_were_asked_for_are_published(home: LocalHome) -> None:
    given_up = sealed(home.committer, {"a": b"given up", "b": b"too"})
    reported = sealed(home.committer, {"a": b"reported"})
    with pytest.raises(NotWholeError):
        home.publish(CHECKPOINT, False, ["0" * 32])
    home.publish(CHECKPOINT, False, [reported])
    found = {path.name: path.read_bytes() for path in (home.root / CHECKPOINT).iterdir()}
    assert found == {"a": b"reported"}
    assert given_up != reported


def test_publishing_again_is_nothing_and_another_of_that_name_is_refused(home: LocalHome) -> None:
    reported = sealed(home.committer, {"a": b"1"})
    home.publish(CHECKPOINT, False, [reported])
    assert home.publish(CHECKPOINT, False, [reported]) == ()
    with pytest.raises(ImmutableError, match="never changes"):
        home.publish(CHECKPOINT, False, [sealed(home.committer, {"a": b"2"})])
    assert (home.root / CHECKPOINT / "a").read_bytes() == b"1"


def test_removing_knows_checkpoints_from_files(home: LocalHome) -> None:
    home.publish(CHECKPOINT, False, [sealed(home.committer, {"a": b"1"})])
    (home.root / "trial/plots").mkdir()
    (home.root / "trial/plots/a.png").touch()
    (home.root / "trial/result.json").touch()
    with pytest.raises(ImmutableError, match="delete the checkpoint instead"):
        home.remove(f"{CHECKPOINT}/a")
    home.remove("trial/plots")
    home.remove("trial/result.json")
    home.remove("trial/absent")
    assert sorted(path.name for path in (home.root / "trial").iterdir()) == ["checkpoint_000000"]
    home.remove(CHECKPOINT)
    assert home.info(CHECKPOINT) is None
    assert home.committer.manifest(CHECKPOINT) is None


@pytest.mark.parametrize("kind", [LocalHome, SharedHome])
@pytest.mark.parametrize(("inside", "depth"), [("", 1), ("trial/inner", 0)])
def test_a_directory_that_holds_published_checkpoints_is_not_removed_as_such(
    tmp_path: Path, kind: type[LocalHome], inside: str, depth: int
) -> None:
    home, inner = kind(tmp_path), kind(tmp_path / inside, checkpoint_depth=depth)
    (tmp_path / inside).mkdir(parents=True, exist_ok=True)
    checkpoint = CHECKPOINT if depth else CHECKPOINT.partition("/")[2]
    inner.publish(checkpoint, False, [sealed(inner.committer, {"a": b"1"}, checkpoint)])
    whole = "trial/(inner/)?checkpoint_000000: delete its checkpoints first"
    with pytest.raises(ImmutableError, match=whole):
        home.remove("trial")
    assert (inner.root / checkpoint / "a").read_bytes() == b"1"
    inner.remove(checkpoint)
    gone = inner.root / manifest_key("trial/checkpoint_000001" if depth else "checkpoint_000001")
    gone.write_text("of a checkpoint that somebody has removed by hand")
    home.remove("trial")
    assert home.info("trial") is None


def test_nothing_becomes_visible_once_another_run_took_over(tmp_path: Path) -> None:
    lease = Lease(tmp_path, "old")
    lease.acquire()
    home = LocalHome(tmp_path, "old")
    attempt = sealed(home.committer, {"a": b"1"})
    incoming = home.begin_file()
    home.write(incoming, 0, b"1")
    successor = Lease(tmp_path, "new")
    successor.acquire(may_take=lambda holder: True)
    try:
        for act in (
            lambda: home.publish(CHECKPOINT, False, [attempt]),
            lambda: home.commit_file(incoming, "trial/result.json", True),
            lambda: home.remove("trial"),
            lambda: home.begin(CHECKPOINT),
            lambda: home.seal(CHECKPOINT, Seal(attempt, 0, 2.0, ())),
        ):
            with pytest.raises(LeaseLostError, match="this run must stop"):
                act()
        assert home.list("trial", recursive=True) == []
    finally:
        lease.release()
        successor.release()


@pytest.mark.parametrize("key", ["../x", "/etc/passwd", "a/../../x", "a\0b", "a//b", "./a"])
def test_no_verb_leaves_the_directory(home: LocalHome, tmp_path: Path, key: str) -> None:
    incoming = home.begin_file()
    for act in (
        lambda: home.info(key),
        lambda: home.list(key, True),
        lambda: home.read(key, 0, 1),
        lambda: home.make_dir(key),
        lambda: home.remove(key),
        lambda: home.begin(key),
        lambda: home.write(key, 0, b"1"),
        lambda: home.write_batch([Piece(key, 0, 1)], b"1"),
        lambda: home.link(incoming, key),
        lambda: home.link(key, incoming),
        lambda: home.commit_file(key, "a", True),
        lambda: home.commit_file(incoming, key, True),
        lambda: home.discard_attempt(key, "x"),
        lambda: home.seal(key, Seal("0" * 32, 0, 1.0, ())),
        lambda: home.publish(key, False, ["x"]),
    ):
        with pytest.raises((PathRefusedError, NotWholeError)):
            act()
    assert list(tmp_path.iterdir()) == [home.root]


VISIBLE = "trial/result.json"
OURS = ".tune_sync/lease.json"


@pytest.mark.parametrize("key", [f"{CHECKPOINT}/a", f"{CHECKPOINT}/new", CHECKPOINT, OURS, VISIBLE])
def test_bytes_go_into_staging_alone(home: LocalHome, key: str) -> None:
    home.publish(CHECKPOINT, False, [sealed(home.committer, {"a": b"1"})])
    staged = f"{staged_key('trial/checkpoint_000001', home.begin('trial/checkpoint_000001'))}/x"
    home.write(staged, 0, b"x")
    before = {path: path.stat().st_mtime_ns for path in home.root.rglob("*")}
    for act in (
        lambda: home.write(key, 0, b"2"),
        lambda: home.write_batch([Piece(key, 0, 1)], b"2"),
        lambda: home.link(staged, key),
        lambda: home.link(key, f"{staged}2"),
        lambda: home.commit_file(key, "trial/other", False),
        lambda: home.commit_file(staged, "trial/other", False),
    ):
        with pytest.raises(PathRefusedError, match=r"not in (staging|\.tune_sync/incoming)"):
            act()
    assert before == {path: path.stat().st_mtime_ns for path in home.root.rglob("*")}


@pytest.mark.parametrize("key", [f"{CHECKPOINT}/a", f"{CHECKPOINT}/new", OURS, ".tune_sync", ""])
def test_published_checkpoints_and_what_is_ours_are_out_of_reach(home: LocalHome, key: str) -> None:
    home.publish(CHECKPOINT, False, [sealed(home.committer, {"a": b"1"})])
    incoming = home.begin_file()
    home.write(incoming, 0, b"2")
    for act in (
        lambda: home.make_dir(key or ".tune_sync/x"),
        lambda: home.remove(key),
        lambda: home.commit_file(incoming, key, False),
        lambda: home.begin(key),
        lambda: home.seal(key, Seal("0" * 32, 0, 1.0, ())),
        lambda: home.publish(key, False, ["0" * 32]),
        lambda: home.discard_attempt(key, "0" * 32),
    ):
        with pytest.raises((PathRefusedError, ImmutableError)):
            act()
    assert (home.root / CHECKPOINT / "a").read_bytes() == b"1"
    assert home.committer.manifest(CHECKPOINT) is not None


@pytest.mark.parametrize("claimed_depth", [0, 2, 7, -1])
def test_a_published_checkpoint_is_one_whatever_depth_a_caller_claims(
    home: LocalHome, claimed_depth: int
) -> None:
    home.publish(CHECKPOINT, False, [sealed(home.committer, {"a": b"1"})])
    liar = LocalHome(home.root, "", claimed_depth)
    incoming = liar.begin_file()
    liar.write(incoming, 0, b"2")
    for act in (
        lambda: liar.commit_file(incoming, f"{CHECKPOINT}/a", False),
        lambda: liar.commit_file(incoming, f"{CHECKPOINT}/new", False),
        lambda: liar.make_dir(f"{CHECKPOINT}/new"),
        lambda: liar.remove(f"{CHECKPOINT}/a"),
    ):
        with pytest.raises(ImmutableError, match="never changes"):
            act()
    assert [path.name for path in (home.root / CHECKPOINT).iterdir()] == ["a"]


@pytest.mark.parametrize("name", ["..", "../../x", "", "a/b", "0" * 31, "G" * 32, "0" * 32 + "\n"])
def test_the_id_of_an_attempt_is_an_id(home: LocalHome, name: str) -> None:
    with pytest.raises(PathRefusedError, match="not the id of an attempt"):
        home.discard_attempt(CHECKPOINT, name)
    with pytest.raises(PathRefusedError, match="not the id of an attempt"):
        home.seal(CHECKPOINT, Seal(name, 0, 1.0, ()))


@pytest.mark.parametrize("path", ["../../x", "/x", "a/../b", "", "a\0b"])
def test_a_hostile_seal_is_refused(home: LocalHome, path: str) -> None:
    attempt = home.begin(CHECKPOINT)
    for seal in (
        Seal(attempt, 0, 1.0, (FileEntry(path, 0, ""),)),
        Seal(attempt, 0, 1.0, (), (path,)),
    ):
        with pytest.raises((PathRefusedError, NotWholeError)):
            home.seal(CHECKPOINT, seal)
            home.publish(CHECKPOINT, False, [attempt])
    assert home.info(CHECKPOINT) is None


def test_a_link_out_of_the_directory_is_not_written_through(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    home = LocalHome(tmp_path)
    (tmp_path / "trial").symlink_to(outside)
    incoming = home.begin_file()
    home.write(incoming, 0, b"1")
    with pytest.raises(PathRefusedError, match="link out of"):
        home.commit_file(incoming, "trial/x", True)
    with pytest.raises(PathRefusedError, match="link out of"):
        home.make_dir("trial/sub")
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("ends", ["drop", "commit"])
def test_a_late_write_makes_no_file_anew(home: LocalHome, ends: str) -> None:
    incoming = home.begin_file()
    home.write(incoming, 0, b"1")
    if ends == "drop":
        home.drop_file(incoming)
    else:
        home.commit_file(incoming, "trial/x", True)
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="too late"):
            home.write(incoming, 1, b"2")
    assert home.store.list(INCOMING_DIR) == []
    assert ends == "drop" or (home.root / "trial/x").read_bytes() == b"1"


def test_a_write_that_is_under_way_as_its_file_is_given_up_leaves_nothing(
    home: LocalHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    incoming, write_at = home.begin_file(), home.store.write_at
    home.write(incoming, 0, b"1")

    def late(*args: Any) -> None:
        home.drop_file(incoming)
        write_at(*args)

    monkeypatch.setattr(home.store, "write_at", late)
    with pytest.raises(FileNotFoundError, match="too late"):
        home.write(incoming, 1, b"2")
    assert home.store.list(INCOMING_DIR) == []


def test_what_is_known_of_files_that_are_over_is_bounded(
    home: LocalHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "OVER_KEPT_COUNT", 2)
    names = [home.begin_file() for _ in range(5)]
    for name in names:
        home.drop_file(name)
    assert list(home._over) == names[3:]


def test_many_writers_of_one_attempt_do_not_disturb_each_other(home: LocalHome) -> None:
    top = staged_key(CHECKPOINT, home.begin(CHECKPOINT))

    def work(number: int) -> None:
        for each in range(40):
            home.write(f"{top}/d{each}/f{number}", 0, f"{number} {each}".encode())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files = [path for path in (home.root / top).rglob("*") if path.is_file()]
    assert len(files) == 8 * 40


def test_keys_know_what_they_are_part_of() -> None:
    top = staged_key("trial/checkpoint_000001", "0" * 32)
    for key in (top, f"{top}/a", f"{top}/a/{'1' * 32}/data/b"):
        assert attempt_root(key) == staged_part(key) == top
    incoming = f"{layout.INCOMING_DIR}/{'2' * 32}"
    assert staged_part(incoming) == incoming
    assert attempt_root(incoming) == layout.INCOMING_DIR


def test_damaged_bytes_are_told_from_sound_ones() -> None:
    data = os.urandom(1000)
    check_digest("a", memoryview(data), digest_of(data))
    with pytest.raises(DamagedError, match="a: 999 bytes arrived damaged"):
        check_digest("a", memoryview(data[1:]), digest_of(data))
