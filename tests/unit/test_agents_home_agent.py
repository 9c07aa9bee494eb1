"""The home agent's own checks, called without Ray."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.unit.staged import CHECKPOINT
from tune_sync import layout
from tune_sync.agents import home_agent
from tune_sync.agents.home_agent import HomeAgent
from tune_sync.agents.known_runs import KnownRun
from tune_sync.errors import DamagedError, PathRefusedError
from tune_sync.homes.digests import digest_of
from tune_sync.homes.home import LocalHome, Piece
from tune_sync.layout import FORMAT_KEY, staged_key

DATA = np.frombuffer(b"some bytes", dtype=np.uint8)
RIGHT = digest_of(b"some bytes")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An experiment directory, below others that are none."""
    root = tmp_path / "results/exp"
    (root / FORMAT_KEY).parent.mkdir(parents=True)
    (root / FORMAT_KEY).write_text("{}")
    return root


@pytest.fixture
def staged(root: Path) -> str:
    return f"{staged_key(CHECKPOINT, LocalHome(root).begin(CHECKPOINT))}/f"


def test_sound_bytes_are_written_and_read(root: Path, staged: str) -> None:
    agent = HomeAgent()
    agent.write(str(root), "", 1, staged, 0, RIGHT, DATA)
    assert agent.read(str(root), "", 1, staged, 5, 100).tobytes() == b"bytes"
    lengths, data = agent.read_many(str(root), "", 1, [staged, staged])
    assert (lengths, data.tobytes()) == ([10, 10], b"some bytessome bytes")


def test_damaged_bytes_are_not_written(root: Path, staged: str) -> None:
    agent = HomeAgent()
    with pytest.raises(DamagedError, match="10 bytes arrived damaged"):
        agent.write(str(root), "", 1, staged, 0, "0" * 32, DATA)
    with pytest.raises(DamagedError, match="a batch of 1 files"):
        agent.write_batch(str(root), "", 1, [Piece(staged, 0, 10)], "0" * 32, DATA)
    assert not (root / staged).exists()


@pytest.mark.parametrize("verb", ["__init__", "store", "_fence", "write", "committer", ""])
def test_verbs_that_are_not_on_the_list_are_refused(root: Path, verb: str) -> None:
    with pytest.raises(PathRefusedError, match="not a verb of a home"):
        HomeAgent().call(str(root), "", 1, verb, "x")


@pytest.mark.parametrize(
    "inside", ["..", "../..", "../other", ".tune_sync", f"{CHECKPOINT}", f"{CHECKPOINT}/sub", "\0"]
)
def test_roots_that_are_no_experiment_or_kept_safe_by_one_are_refused(
    root: Path, inside: str
) -> None:
    (root / CHECKPOINT / "sub").mkdir(parents=True)
    with pytest.raises(PathRefusedError):
        HomeAgent().call(f"{root}/{inside}", "", 1, "info", "x")


def test_a_checkpoint_that_looks_like_an_experiment_is_still_a_checkpoint(root: Path) -> None:
    inner = root / CHECKPOINT
    (inner / FORMAT_KEY).parent.mkdir(parents=True)
    (inner / FORMAT_KEY).write_text("{}")
    with pytest.raises(PathRefusedError, match="only commits change"):
        HomeAgent().call(str(inner), "", 0, "begin_file")


def test_a_root_that_is_a_link_is_where_it_leads(root: Path, tmp_path: Path) -> None:
    (root / "away").symlink_to(tmp_path)
    with pytest.raises(PathRefusedError, match="no experiment"):
        HomeAgent().call(f"{root}/away", "", 1, "info", "x")
    (tmp_path / "short").symlink_to(root)
    assert HomeAgent().call(f"{tmp_path}/short", "", 1, "info", "x") is None


def test_runs_that_begin_at_once_keep_one_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray ends an actor when the handle goes that its creator got first."""

    def create(name: str, node_id: str) -> object:
        time.sleep(0.05)
        return object()

    monkeypatch.setattr(home_agent, "_create", create)
    monkeypatch.setattr(home_agent, "_KEEP", {})
    with ThreadPoolExecutor(4) as threads:
        begun = list(threads.map(lambda _: home_agent.begin_agent("home-1", "node"), range(4)))
    assert {id(handle) for handle in begun} == {id(home_agent._KEEP["home-1"])}


def test_a_run_is_noted_though_trials_of_others_tell_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent, below = HomeAgent(), layout.below

    def told_meanwhile(root: str, path: str) -> str | None:
        agent.tell_unstored(f"/other/{len(agent._unstored)}", "trial/log.txt", "why")
        return below(root, path)

    agent.tell_unstored("/exp", "trial/log.txt", "why")
    monkeypatch.setattr(layout, "below", told_meanwhile)
    run = KnownRun({})
    agent.note_run("/exp", run)
    assert agent.known_runs() == [run] and "/exp" not in agent._unstored
