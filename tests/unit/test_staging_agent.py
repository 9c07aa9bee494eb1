"""A node's agent that does not answer is waited for, until `sync_timeout` is over."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError

from tune_sync.agents import staging_agent
from tune_sync.agents.connect import RayConnector
from tune_sync.agents.staging_agent import RayStagingAgent
from tune_sync.errors import HomeLostError
from tune_sync.spec import Options, Spec

AWAY = ActorUnavailableError("keepalive watchdog timeout", b"0" * 16)
LATE, DEAD = GetTimeoutError("timed out"), ActorDiedError()


class Node:
    """Stands in for Ray: an agent that meets these errors before it answers.

    Attributes:
        starts_count: How often the agent was started.
        asked_count: How often it was asked.
        has_started: Whether it answers at all.
    """

    def __init__(self, errors: list[Exception]) -> None:
        self._errors = errors
        self.starts_count = self.asked_count = 0
        self.has_started = True

    def launch(self, *_: object) -> SimpleNamespace:
        self.starts_count += 1
        return SimpleNamespace(
            ping=SimpleNamespace(remote=lambda: "ping"),
            is_stored=SimpleNamespace(remote=lambda attempt: self._asked()),
        )

    def wait(self, refs: list[str], timeout: float) -> tuple[list[str], list[str]]:
        return (refs, []) if self.has_started else ([], refs)

    def get(self, ref: str, timeout: float) -> bool:
        assert ref == "asked" and timeout >= 0
        if self._errors:
            raise self._errors.pop(0)
        return True

    def _asked(self) -> str:
        self.asked_count += 1
        return "asked"


@pytest.fixture
def agent_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[Node, float], RayStagingAgent]:
    def make(node: Node, timeout_s: float) -> RayStagingAgent:
        for name in ("wait", "get"):
            monkeypatch.setattr(ray, name, getattr(node, name))
        monkeypatch.setattr(staging_agent, "launch_node_agent", node.launch)
        monkeypatch.setattr(staging_agent, "AGAIN_S", 0.01)
        options = Options(timeout_s=timeout_s)
        spec = Spec("key", "/results", "exp", "0" * 32, None, options)
        return RayStagingAgent(spec, "node1", tmp_path, RayConnector())

    return make


@pytest.mark.parametrize(("error", "asked_count"), [(LATE, 1), (AWAY, 6)])
def test_one_that_answers_late_is_waited_for_and_that_is_said_once(
    agent_of: Callable[..., RayStagingAgent], caplog: pytest.LogCaptureFixture,
    error: Exception, asked_count: int,
) -> None:  # fmt: skip
    node = Node([error] * 5)
    with caplog.at_level(logging.WARNING):
        assert agent_of(node, 60.0).is_stored("attempt")
    assert (node.asked_count, node.starts_count) == (asked_count, 1)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and str(error) in said[0]
    assert (
        "/results/exp: the agent of node node1 does not answer, goes on waiting for 60 s" in said[0]
    )


@pytest.mark.parametrize("error", [LATE, AWAY])
def test_it_is_given_up_when_the_time_is_over(
    agent_of: Callable[..., RayStagingAgent], error: Exception
) -> None:
    node = Node([error] * 1_000_000)
    with pytest.raises(HomeLostError, match=r"node node1 did not answer .*look at that node"):
        agent_of(node, 0.1).is_stored("attempt")
    assert node.starts_count == 1


def test_one_that_is_starting_may_take_longer_than_that(
    agent_of: Callable[..., RayStagingAgent],
) -> None:
    node = Node([LATE] * 3)
    node.has_started = False
    assert agent_of(node, 0.0).is_stored("attempt")


def test_one_that_died_is_started_again_once(agent_of: Callable[..., RayStagingAgent]) -> None:
    node = Node([DEAD])
    assert agent_of(node, 60.0).is_stored("attempt")
    assert (node.asked_count, node.starts_count) == (2, 2)
    node = Node([DEAD, DEAD])
    with pytest.raises(HomeLostError, match=r"node node1 .*look at that node"):
        agent_of(node, 60.0).is_stored("attempt")
    assert node.starts_count == 2
