"""What Ray says when another node's agent is gone, as those who asked it take it."""

from __future__ import annotations

from typing import Any

import pytest
import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ActorUnschedulableError,
    GetTimeoutError,
    RayError,
    RayTaskError,
)

from tune_sync.agents.node_agents import RayNodes
from tune_sync.agents.replica_home import peer_error
from tune_sync.behind.nodes import NodeLostError
from tune_sync.behind.replicating import _LASTING
from tune_sync.errors import (
    DamagedError,
    HomeLostError,
    NotWholeError,
    PeerLostError,
    StoreFullError,
    SyncTimeoutError,
)
from tune_sync.sending.orders import Orders
from tune_sync.spec import Options, Spec

GONE = [
    ActorUnschedulableError("the node given by NodeAffinitySchedulingStrategy is dead"),
    ActorDiedError(),
    ActorUnavailableError("it restarts", b"0" * 16),
    RayError(),
]


@pytest.mark.parametrize("error", GONE, ids=lambda error: type(error).__name__)
def test_an_agent_that_is_gone_is_looked_for_again(error: RayError) -> None:
    found = peer_error(error, 60.0)
    assert isinstance(found, HomeLostError)
    assert not isinstance(found, _LASTING)


def test_an_agent_that_hangs_is_asked_again() -> None:
    assert isinstance(peer_error(GetTimeoutError(), 60.0), SyncTimeoutError)


@pytest.mark.parametrize("cause", [NotWholeError("half"), DamagedError("a bit")])
def test_what_is_wrong_with_the_copy_there_is_not_wrong_here(cause: Exception) -> None:
    found = peer_error(RayTaskError("seal_replica", "", cause), 60.0)
    assert isinstance(found, PeerLostError)
    assert str(cause) in str(found)
    assert not isinstance(found, _LASTING)


def test_what_else_it_raises_is_raised_here() -> None:
    full = StoreFullError(28, "no room")
    assert peer_error(RayTaskError("begin_replica", "", full), 60.0) is full


class GoneNodes(RayNodes):
    """Every call of a node's agent fails; `alive` are the nodes that Ray says live."""

    alive: tuple[str, ...] = ("node",)

    def __init__(self, error: RayError) -> None:
        super().__init__(Spec("key", "bucket", "exp", "0" * 32, None, Options(), "s3"))
        self._error = error
        self._handles["node"] = "stale"

    def _ask(self, node: str, orders: Orders) -> Any:
        raise self._error

    def alive_nodes(self) -> set[str]:
        return set(self.alive)

    @property
    def known(self) -> list[str]:
        return list(self._handles)


@pytest.mark.parametrize("error", [*GONE, GetTimeoutError()], ids=lambda e: type(e).__name__)
def test_a_node_whose_agent_is_gone_is_looked_at(error: RayError) -> None:
    nodes = GoneNodes(error)
    assert nodes.exchange(["node"], lambda node: Orders()) == {"node": error}
    assert nodes.known == []
    nodes.alive = ()
    (found,) = nodes.exchange(["node"], lambda node: Orders()).values()
    assert isinstance(found, NodeLostError)


def test_who_asks_where_ray_has_ended_does_not_start_it_again() -> None:
    nodes = RayNodes(Spec("key", "bucket", "exp", "0" * 32, None, Options(), "s3"))
    with pytest.raises(ConnectionError, match="Ray has ended"):
        nodes.exchange(["node"], lambda node: Orders())
    assert not ray.is_initialized()
