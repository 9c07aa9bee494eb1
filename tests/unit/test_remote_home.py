"""An agent that cannot be reached for a while is asked again, until `sync_timeout` is over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError

from tune_sync.agents import remote_home
from tune_sync.agents.remote_home import RemoteHome
from tune_sync.errors import HomeLostError
from tune_sync.layout import staged_key

AWAY = ActorUnavailableError("no answer of it", b"0" * 16)
DATA = b"bytes of a chunk"
PART = staged_key("trial/checkpoint_000000", "0" * 32)


class Asked(tuple[str, tuple[Any, ...]]):
    """Stands in for a reference: what was asked, and never done before it is waited for."""

    def future(self) -> Future[Any]:
        away: Future[Any] = Future()
        away.set_exception(AWAY)
        return away


class Cluster:
    """Stands in for Ray: the first calls of each verb meet an agent that is away.

    Attributes:
        calls: What was asked, in order.
    """

    def __init__(self, away_count: int, error: Exception = AWAY) -> None:
        self._left, self._error = away_count, error
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def agent(self, *_: Any, **__: Any) -> SimpleNamespace:
        def method(name: str) -> SimpleNamespace:
            def remote(*arguments: Any) -> Asked:
                self.calls.append((name, arguments))
                return Asked(self.calls[-1])

            return SimpleNamespace(remote=remote)

        return SimpleNamespace(**{n: method(n) for n in ("call", "write", "read", "read_many")})

    def get(self, asked: tuple[str, tuple[Any, ...]], timeout: float) -> Any:
        assert timeout >= 0
        if self._left:
            self._left -= 1
            raise self._error
        name, arguments = asked
        if name == "read":
            at, length = arguments[-2:]
            return np.frombuffer(DATA, dtype=np.uint8)[at : at + length]
        if name == "read_many":
            return [len(DATA)], np.frombuffer(DATA, dtype=np.uint8)
        return "attempt"


@pytest.fixture
def home_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RemoteHome]]:
    monkeypatch.setattr(remote_home, "AGAIN_S", 0.01)

    def make(cluster: Cluster, timeout_s: float = 60.0) -> RemoteHome:
        monkeypatch.setattr(ray, "get_actor", cluster.agent)
        monkeypatch.setattr(ray, "get", cluster.get)
        monkeypatch.setattr(ray, "put", lambda array: array.tobytes())
        return RemoteHome("agent", "/results/exp", "owner", 1, timeout_s)

    return make


def write(home: RemoteHome) -> object:
    home.write(f"{PART}/file", 0, DATA)
    return home.flush(PART)


ASKED: list[tuple[Callable[[RemoteHome], object], object]] = [
    (lambda home: home.begin("trial/checkpoint_000000"), "attempt"),
    (lambda home: bytes(home.read("trial/file", 0, len(DATA))), DATA),
    (lambda home: home.read_many(["trial/file"]), [DATA]),
    (write, None),
]


@pytest.mark.parametrize(("ask", "answer"), ASKED, ids=["call", "read", "read_many", "write"])
def test_an_agent_that_is_away_for_a_while_is_asked_again(
    home_of: Callable[..., RemoteHome], caplog: pytest.LogCaptureFixture,
    ask: Callable[[RemoteHome], object], answer: object,
) -> None:  # fmt: skip
    cluster = Cluster(away_count=3)
    home = home_of(cluster)
    with caplog.at_level(logging.WARNING):
        assert ask(home) == answer
    assert len(cluster.calls) == 4 and len({repr(call) for call in cluster.calls}) == 1
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and "/results/exp cannot be reached, goes on asking" in said[0]


@pytest.mark.parametrize(("ask", "answer"), ASKED, ids=["call", "read", "read_many", "write"])
def test_it_is_given_up_when_the_time_is_over(
    home_of: Callable[..., RemoteHome], ask: Callable[[RemoteHome], object], answer: object
) -> None:
    home = home_of(Cluster(away_count=1_000_000), timeout_s=0.2)
    with pytest.raises(HomeLostError, match=r"could not be reached .*no answer of it"):
        ask(home)


def test_one_that_died_is_not_asked_again(home_of: Callable[..., RemoteHome]) -> None:
    cluster = Cluster(away_count=1_000_000, error=ActorDiedError())
    home = home_of(cluster)
    with pytest.raises(HomeLostError, match="restore the experiment"):
        home.begin("trial/checkpoint_000000")
    assert len(cluster.calls) == 1
