"""What crashes of a node, of its trials and of its agents leave in staging."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_node_sender import FIRST, SECOND, Shaky, report
from tune_sync import layout
from tune_sync.behind import staged_copy
from tune_sync.behind.left_behind import find, mark_as, remove_sent, send_left
from tune_sync.behind.node_disk import NodeDisk
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.behind.staging_home import StagingHome
from tune_sync.homes.store import LocalStore

WHERE = "file:///experiment"


class NoAgent:
    """Nobody sends yet."""

    def has_room(self) -> bool:
        return True

    def make_room(self) -> None: ...

    def wake(self) -> None: ...


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "staging/run/node"
    mark_as(made, WHERE)
    return made


@pytest.fixture
def home(tmp_path: Path) -> Shaky:
    return Shaky(tmp_path / "home")


@pytest.fixture
def local(root: Path, home: Shaky) -> StagingHome:
    return StagingHome(home, root, NoAgent(), "node1")  # type: ignore[arg-type]


def test_what_has_no_writer_after_a_power_cut_is_removed(root: Path) -> None:
    attempt, copies = NodeDisk(root).begin(FIRST), StagedCopies(root)
    assert not copies.is_abandoned(FIRST, attempt)
    (root / layout.attempt_key(FIRST, attempt) / "writer.json").unlink()
    assert copies.is_abandoned(FIRST, attempt)


def test_a_writer_of_before_the_host_went_down_has_ended(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, copies = NodeDisk(root).begin(FIRST), StagedCopies(root)
    monkeypatch.setattr(staged_copy, "boot", lambda: "another")
    assert copies.is_abandoned(FIRST, attempt)


def test_a_retry_begins_also_as_the_agent_removes_what_the_killed_try_left(root: Path) -> None:
    disk, copies = NodeDisk(root), StagedCopies(root)
    left = [disk.begin(FIRST)]

    class BesideTheAgent(LocalStore):
        """The agent comes between the last two calls of `begin`."""

        def rename(self, source: str, target: str) -> None:
            if target.startswith(layout.STAGING_DIR) and left:
                assert copies.remove(FIRST, left.pop())
            super().rename(source, target)

    disk.store = BesideTheAgent(root)
    attempt = disk.begin(FIRST)
    assert list(copies.attempts()) == [(FIRST, attempt)]


def test_an_attempt_is_never_seen_without_its_writer(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException): ...

    def die(*args: object) -> None:
        raise Killed

    monkeypatch.setattr("tune_sync.behind.node_disk.note_writer", die)
    with pytest.raises(Killed):
        NodeDisk(root).begin(FIRST)
    assert not list(StagedCopies(root).attempts())


def test_a_file_that_someone_removed_keeps_nothing_else_from_being_sent(
    root: Path, home: Shaky, local: StagingHome
) -> None:
    first, _ = report(local, FIRST), report(local, SECOND)
    (root / layout.staged_key(FIRST, first.attempt) / "two").unlink()
    (left,) = find(root.parents[1])
    assert send_left(left, home, lambda checkpoint: True) == [SECOND]
    assert not root.exists()


def test_an_agent_that_was_killed_as_it_ended_is_no_hindrance_to_the_next(root: Path) -> None:
    shutil.copytree(root, root.with_name(f"{root.name}.ending"))
    assert remove_sent([root])
    assert not root.parent.exists()


def test_what_an_agent_could_not_send_before_it_was_killed_stays(
    root: Path, local: StagingHome
) -> None:
    report(local, FIRST)
    aside = root.rename(root.with_name(f"{root.name}.ending"))
    mark_as(root, WHERE)
    assert not remove_sent([root])
    assert list(StagedCopies(aside).attempts())


def test_whose_it_is_goes_last(
    root: Path, local: StagingHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException): ...

    report(local, FIRST)
    rmtree: Callable[..., None] = shutil.rmtree

    def die_at_the_end(path: Path, **more: Any) -> None:
        if path == root:
            raise Killed
        rmtree(path, **more)

    monkeypatch.setattr(shutil, "rmtree", die_at_the_end)
    (left,) = find(root.parents[1])
    with pytest.raises(Killed):
        left.remove()
    assert find(root.parents[1]) == [left]
    assert not list(StagedCopies(root).attempts())
