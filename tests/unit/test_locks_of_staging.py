"""Staging whose lock cannot be had, for another reason than that somebody has it, is told of."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

import pytest

from tests.unit.test_left_behind import NODE, OWNER, Reached, leave
from tests.unit.test_node_sender import FIRST, Shaky
from tune_sync import layout
from tune_sync.agents.left_on_nodes import Wanted, send_here
from tune_sync.behind.left_behind import LOCK, Claim, find
from tune_sync.behind.staging_sweep import LEFT_AGE_S, MEMORY_AGE_S, sweep_memory, sweep_old
from tune_sync.spec import Options, Spec

WANTED = Wanted(frozenset(), {"t": ""})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "staging" / OWNER / NODE


@pytest.fixture
def home(tmp_path: Path) -> Shaky:
    return Shaky(tmp_path / "home")


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, object]:
    options = Options(staging_dir=str(tmp_path / "staging"), memory_dir=str(tmp_path))
    return Spec("key", "bucket/results", "exp", "1" * 32, None, options, "s3").to_plain()


def no_flock(*of: object) -> None:
    """As on some network file systems."""
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def locked_out(root: Path) -> None:
    """Its lock cannot be opened: here it is a directory, as nothing is read-only to root."""
    lock = root / layout.INTERNAL_DIR / LOCK
    lock.unlink()
    lock.mkdir()


def test_a_restore_names_what_it_cannot_lock_and_removes_nothing(
    root: Path, home: Shaky, plain: dict[str, object]
) -> None:
    leave(root, FIRST)
    locked_out(root)
    sent, why = send_here(plain, Reached(home), WANTED, [])
    assert sent == []
    assert f"{root}: " in why
    assert f"it cannot be locked ({os.strerror(errno.EISDIR)})" in why
    assert (root / layout.STAGING_DIR / FIRST).exists()
    (root / layout.INTERNAL_DIR / LOCK).rmdir()
    assert send_here(plain, Reached(home), WANTED, []) == ([FIRST], "")


def test_a_file_system_without_locks_is_named_too(
    root: Path, home: Shaky, plain: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(root, FIRST)
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", no_flock)
        sent, why = send_here(plain, Reached(home), WANTED, [])
    assert sent == []
    assert f"it cannot be locked ({os.strerror(errno.ENOSYS)})" in why
    assert send_here(plain, Reached(home), WANTED, []) == ([FIRST], "")


def test_what_another_process_uses_is_named(
    root: Path, home: Shaky, plain: dict[str, object]
) -> None:
    leave(root, FIRST)
    claim = Claim(root, "s3://bucket/results/exp")
    assert send_here(plain, Reached(home), WANTED, []) == (
        [], f"{root}: another process uses it",
    )  # fmt: skip
    claim.give_up()


def test_who_cannot_lock_its_own_says_whose_it_is_all_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", no_flock)
    claim = Claim(root, "the experiment")
    (left,) = find(root.parents[1])
    assert left.where == "the experiment"
    claim.give_up()


def test_what_cannot_be_locked_keeps_nothing_else_from_going(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = root.with_name("node2")
    leave(root, FIRST)
    leave(other, FIRST)
    locked_out(root)
    assert sweep_old(root.parents[1], time.time() + 2 * LEFT_AGE_S) == [other]
    assert (root / layout.STAGING_DIR / FIRST).exists()
    assert f"{root} cannot be removed: " in caplog.text


def test_what_cannot_be_locked_in_memory_keeps_nothing_else_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory, staging = tmp_path / "shm", tmp_path / "staging"
    for node in ("node1", "node2"):
        leave(memory / OWNER / node, FIRST)
    locked_out(memory / OWNER / "node1")
    moved = sweep_memory(memory, staging, time.time() + 2 * MEMORY_AGE_S)
    assert moved == [staging / OWNER / "node2"]
    assert f"{memory / OWNER / 'node1'} stays in memory: " in caplog.text
