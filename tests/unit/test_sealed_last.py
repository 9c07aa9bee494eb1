"""What a process seals just before it ends counts, also if somebody looked a moment before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_left_behind import FIRST, SECOND, home, leave, root, sent, staging
from tests.unit.test_node_sender import Shaky, until
from tune_sync.behind.left_behind import find
from tune_sync.behind.node_sender import NodeSender
from tune_sync.behind.staged_copy import StagedCopies

__all__ = ["home", "root", "staging"]  # fixtures

NO_PID = 4194000


@pytest.fixture
def late(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A seal that is there once its writer is asked for, which has ended by then."""
    leave(root, FIRST)
    (seal,) = root.rglob("seal.json")
    aside = seal.rename(root / "aside")
    writer = seal.with_name("writer.json")
    writer.write_text(writer.read_text().replace(f'"pid": {os.getpid()}', f'"pid": {NO_PID}'))
    ask = StagedCopies.is_abandoned

    def seal_first(copies: StagedCopies, checkpoint: str, attempt: str) -> bool:
        if aside.exists():
            aside.rename(seal)
        return ask(copies, checkpoint, attempt)

    monkeypatch.setattr(StagedCopies, "is_abandoned", seal_first)
    yield seal
    assert not aside.exists()


def test_an_agent_that_looks_just_then_takes_it_in_the_next_time(
    root: Path, home: Shaky, late: Path
) -> None:
    home.is_up = False
    sender = NodeSender(root, lambda: home, 1 << 26)
    try:
        assert late.exists()
        assert sender.go_on_alone().held == [late.parent.name]
        home.is_up = True
        until(sender, lambda n: late.parent.name in n.stored)
    finally:
        sender.end()


def test_a_restore_that_looks_just_then_leaves_it_for_the_next_one(
    staging: Path, root: Path, home: Shaky, late: Path
) -> None:
    (left,) = find(staging)
    assert sent(left, home, lambda checkpoint: True) == []
    assert late.exists()
    assert sent(left, home, lambda checkpoint: True) == [FIRST]


def test_a_seal_that_cannot_be_read_is_no_half_report(
    staging: Path, root: Path, home: Shaky, late: Path
) -> None:
    (root / "aside").write_text("{")
    leave(root, SECOND)
    (left,) = find(staging)
    assert sent(left, home, lambda checkpoint: True) == [SECOND]
    assert late.exists()
