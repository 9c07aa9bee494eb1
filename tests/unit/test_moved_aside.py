"""Two starts at once, of which at least one moves an earlier experiment aside."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import pytest

from tests.unit.test_store_disks import on_a_small_disk
from tune_sync.errors import LeaseHeldError
from tune_sync.homes.lease import Holder, Lease, read_holder
from tune_sync.homes.lease_lock import locked
from tune_sync.homes.sites import LocalSite, holds_experiment, make_way
from tune_sync.layout import LEASE_KEY
from tune_sync.run import Run
from tune_sync.testing.transport_pair import wait_until

STATE = "experiment_state-2026.json"
TIMEOUT_S = 30.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An experiment whose run is over."""
    path = tmp_path / "exp"
    (path / ".tune_sync").mkdir(parents=True)
    (path / STATE).write_text("{}")
    return path


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as running:
        yield running


def start(root: Path) -> None:
    make_way(LocalSite(root), "move_aside", "", lambda holder: False)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Inodes of locks that somebody asked for while another one had them."""
    flock, inodes = fcntl.flock, list[int]()

    def noting(file: IO[str], operation: int) -> None:
        try:
            flock(file, operation)
        except BlockingIOError:
            inodes.append(os.fstat(file.fileno()).st_ino)
            raise

    monkeypatch.setattr(fcntl, "flock", noting)
    return inodes


def is_waiting(future: Future[None], root: Path, refused: list[int]) -> bool:
    """Wait until it has asked for the lock that is there now; whether it goes on asking."""
    lock = (root / LEASE_KEY).with_suffix(".lock").stat().st_ino
    wait_until(lambda: lock in refused or future.done())
    return not future.done()


def test_who_took_the_directory_meanwhile_keeps_it(
    root: Path, pool: ThreadPoolExecutor, refused: list[int]
) -> None:
    with locked(root / LEASE_KEY):
        late = pool.submit(start, root)
        assert is_waiting(late, root, refused)
        holder = Holder("other", "far", 12, "another machine", "345", time.time())
        (root / LEASE_KEY).write_text(json.dumps(asdict(holder)))
    with pytest.raises(LeaseHeldError, match=r"process 12 on host far"):
        late.result(TIMEOUT_S)
    assert [path.name for path in root.parent.iterdir()] == ["exp"]


def test_what_another_one_has_moved_aside_is_not_missed_nor_moved_again(
    root: Path, pool: ThreadPoolExecutor, refused: list[int]
) -> None:
    with locked(root / LEASE_KEY):
        late = pool.submit(start, root)
        assert is_waiting(late, root, refused)
        root.rename(root.with_name("aside"))
        (root / ".tune_sync").mkdir(parents=True)
        (root / "new").touch()
    late.result(TIMEOUT_S)
    assert (root / "new").exists()
    assert sorted(path.name for path in root.parent.iterdir()) == ["aside", "exp"]


def test_a_lease_is_taken_where_its_directory_is_now(
    root: Path, pool: ThreadPoolExecutor, refused: list[int]
) -> None:
    lease = Lease(root, "me")
    with ExitStack() as newer:
        with locked(root / LEASE_KEY):
            late = pool.submit(lease.acquire)
            assert is_waiting(late, root, refused)
            root.rename(root.with_name("aside"))
            (root / ".tune_sync").mkdir(parents=True)
            newer.enter_context(locked(root / LEASE_KEY))  # by whoever starts there now
        assert is_waiting(late, root, refused)
    late.result(TIMEOUT_S)
    holder = read_holder(root / LEASE_KEY)
    assert holder is not None
    assert holder.owner == "me"
    lease.release()


def test_an_experiment_of_ray_alone_is_moved_aside(root: Path) -> None:
    (root / ".tune_sync").rmdir()
    start(root)
    assert not root.exists()
    (aside,) = root.parent.iterdir()
    assert holds_experiment(aside)


def test_one_that_cannot_be_moved_aside_says_why_and_what_to_do(tmp_path: Path) -> None:
    on_a_small_disk(
        tmp_path,
        """
from tune_sync.homes.sites import LocalSite
root = disk / "of_ray"
root.mkdir()
(root / "experiment_state-2026.json").write_text("{}")
subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
text = str(refused(lambda: LocalSite(root).move_aside(None)))
assert "mounted read-only" in text and "choose another storage_path" in text, text
""",
    )


@pytest.mark.parametrize("begins_anew", [False, True])
@pytest.mark.parametrize(("owner", "step"), [(LocalSite, "prepare"), (Lease, "_take")])
def test_what_is_resumed_in_the_same_moment_is_not_begun_afresh(
    root: Path, monkeypatch: pytest.MonkeyPatch, owner: type, step: str, *, begins_anew: bool
) -> None:
    do = getattr(owner, step)

    def late(self: Any, *args: Any) -> None:
        start(root)
        if begins_anew:
            (root / ".tune_sync").mkdir(parents=True)
        do(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, late)
        with pytest.raises(LeaseHeldError, match=r"moved aside just now.*overwrite=True"):
            Run.open(root, "resume", TIMEOUT_S, 1)
    Run.open(root, "move_aside", TIMEOUT_S, 1).close()  # the other one
    (aside,) = (path for path in root.parent.iterdir() if path != root)
    assert holds_experiment(aside)


def test_who_moves_it_aside_is_not_refused_by_who_resumes_it_in_the_same_moment(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Lease._take

    def late(self: Any, *args: Any) -> None:
        monkeypatch.undo()
        start(root)
        (root / ".tune_sync").mkdir(parents=True)
        try:
            take(self, *args)
        finally:  # the other one goes on
            Run.open(root, "move_aside", TIMEOUT_S, 1).close()

    monkeypatch.setattr(Lease, "_take", late)
    with pytest.raises(LeaseHeldError, match="moved aside just now"):
        Run.open(root, "resume", TIMEOUT_S, 1)
