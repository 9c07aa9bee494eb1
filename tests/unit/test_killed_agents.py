"""What an agent that was killed on its way has left is gone on with by the next one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.unit.test_left_behind import (
    NODE,
    OWNER,
    WHERE,
    home,
    leave,
    recovered,
    root,
    sent,
    staging,
)
from tests.unit.test_node_sender import FIRST, SECOND, Shaky
from tune_sync import layout
from tune_sync.behind.left_behind import find, move_to_disk
from tune_sync.behind.staged_copy import StagedCopies

__all__ = ["home", "root", "staging"]  # fixtures


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "shm" / OWNER / NODE


def test_who_was_killed_while_it_moved_memory_to_the_disk_is_followed(
    staging: Path, memory: Path, root: Path, home: Shaky
) -> None:
    """FIRST was on the disk, and SECOND half copied."""
    leave(memory, FIRST, SECOND)
    found = dict(StagedCopies(memory).attempts())
    for checkpoint, there in (
        (FIRST, layout.attempt_key(FIRST, found[FIRST])),
        (SECOND, f"{layout.TRASH_DIR}/{found[SECOND]}"),
    ):
        shutil.copytree(memory / layout.attempt_key(checkpoint, found[checkpoint]), root / there)
    assert move_to_disk(memory, root)
    assert not memory.exists()
    (left,) = find(staging)
    assert sorted(sent(left, home, lambda checkpoint: True)) == [FIRST, SECOND]
    assert recovered(home) == {FIRST: FIRST.encode(), SECOND: SECOND.encode()}


def test_what_moves_to_the_disk_is_marked_before_it_is_there(
    staging: Path, memory: Path, root: Path
) -> None:
    leave(memory, FIRST)
    for body in memory.rglob("two"):
        body.unlink()
        body.symlink_to(body)  # it cannot be copied
    os.utime(next(memory.rglob("staged_for.json")), (1.0, 1.0))
    assert not move_to_disk(memory, root)
    (left,) = find(staging)
    assert (left.where, left.seen_s) == (WHERE, 1.0)
