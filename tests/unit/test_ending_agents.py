"""What an agent removes as it ends, and when it ends with what it cannot send."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_node_sender import FIRST, SECOND, Shaky, report, staging, until
from tune_sync.agents.node_agent import NodeAgent
from tune_sync.behind.duty import STUCK_S, Step
from tune_sync.behind.node_sender import NodeSender
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.spec import Options, Spec


def ending(tmp_path: Path, sender: NodeSender, **more: Any) -> NodeAgent:
    """An agent, without Ray, whose driver is not there any more."""
    agent = object.__new__(NodeAgent)
    spec = Spec("key", str(tmp_path), "exp", "0" * 32, None, Options())
    made: dict[str, Any] = {
        "_spec": spec, "_root": tmp_path / "node", "_memory": None, "_sender": sender,
        "_is_alone": False, "_is_closing": False, "_close_replica_door": lambda: None,
    }  # fmt: skip
    vars(agent).update(made | more)
    return agent


@pytest.mark.parametrize("is_closing", [False, True])
def test_without_a_lease_what_is_not_stored_stays_but_if_the_driver_said_that_it_is_of_no_use(
    tmp_path: Path, *, is_closing: bool
) -> None:
    home = Shaky(tmp_path / "home")
    sender = NodeSender(tmp_path / "node", lambda: home, 1 << 30, first_pause_s=0.01)
    report(staging(tmp_path, home, sender), FIRST)
    until(sender, lambda n: len(n.stored) == 1)
    home.is_up = False
    report(staging(tmp_path, home, sender), SECOND)
    ending(tmp_path, sender, _is_closing=is_closing)._tidy(is_left=False)
    left = {checkpoint for checkpoint, _ in StagedCopies(tmp_path / "node").attempts()}
    assert (SECOND in left) != is_closing


def test_without_a_lease_nothing_stays_once_all_is_stored(tmp_path: Path) -> None:
    home = Shaky(tmp_path / "home")
    sender = NodeSender(tmp_path / "node", lambda: home, 1 << 30)
    report(staging(tmp_path, home, sender), FIRST)
    until(sender, lambda n: len(n.stored) == 1)
    ending(tmp_path, sender)._tidy(is_left=False)
    assert not (tmp_path / "node").exists()


@pytest.mark.parametrize(
    ("is_idle", "stuck_s", "step"),
    [
        (True, 2 * STUCK_S, Step.END),
        (False, STUCK_S - 1, Step.STAY),
        (False, STUCK_S, Step.LEAVE),
    ],
)
def test_an_agent_of_a_dead_driver_leaves_what_has_not_got_on_for_a_day(
    tmp_path: Path, is_idle: bool, stuck_s: float, step: Step, caplog: pytest.LogCaptureFixture
) -> None:
    sender: Any = types.SimpleNamespace(is_idle=is_idle, stuck_s=stuck_s)
    assert ending(tmp_path, sender)._alone() is step
    assert (f"{tmp_path / 'node'}, stays for a restore" in caplog.text) == (step is Step.LEAVE)
