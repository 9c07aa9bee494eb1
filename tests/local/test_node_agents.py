"""Agents of nodes that are not there, or slow."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray

from tests.hosts.searches import wait_for
from tests.local.test_home_agent import is_there
from tests.unit.staged import sealed
from tune_sync.agents import node_agents
from tune_sync.agents.connect import RayConnector, node_id
from tune_sync.agents.far_copies import TRIES_COUNT, FarCopy
from tune_sync.agents.home_agent import CALL_THREADS, NAMESPACE
from tune_sync.agents.names import agent_name
from tune_sync.agents.node_agent import staging_of, start_node_agent
from tune_sync.agents.node_agents import RayNodes, finish_earlier
from tune_sync.agents.replica_service import GROUPS, ReplicaService
from tune_sync.agents.staging_agent import RayStagingAgent
from tune_sync.behind.behind import Behind
from tune_sync.errors import DamagedError, HomeLostError
from tune_sync.homes.digests import digest_of
from tune_sync.homes.home import LocalHome
from tune_sync.publisher import Publisher
from tune_sync.sending.orders import News, Orders
from tune_sync.spec import Options, Spec


def test_an_agent_of_a_node_that_is_gone_is_one_that_does_not_start(local_ray: None) -> None:
    spec = Spec("key", "/results", "exp", "0" * 32, None, Options())
    with pytest.raises(HomeLostError, match="does not start"):
        start_node_agent(spec, "1" * 56, None, RayConnector())


def test_an_agent_ends_also_where_its_staging_cannot_be_removed(
    local_ray: None, tmp_path: Path
) -> None:
    options = Options(wait_for="staged", staging_dir=str(tmp_path / "staging"))
    spec, node = Spec("key", str(tmp_path), "exp", "0" * 32, None, options), node_id()
    root = staging_of(spec, node)
    agent = start_node_agent(spec, node, root, RayConnector())
    ray.get(agent.finish.remote(), timeout=150)  # as by a restore
    root.with_name(f"{node}.ending").touch()  # what is there cannot be moved aside
    agent.exchange.remote(Orders(is_closing=True))
    wait_for(lambda: not is_there(agent_name(spec, node)), "its end")
    assert root.is_dir()


class Dying:
    """An agent whose process ends at each question, as where the node has no memory left."""

    def ping(self) -> int:
        return os.getpid()

    def is_stored(self, attempt: str) -> bool:
        os._exit(1)


def test_an_agent_that_dies_again_and_again_is_named_with_what_to_do(
    local_ray: None, tmp_path: Path
) -> None:
    spec = Spec(
        "key",
        str(tmp_path),
        "exp",
        "1" * 32,
        None,
        Options(staging_dir=str(tmp_path), timeout_s=5.0),
    )
    actor = ray.remote(num_cpus=0, max_restarts=-1)(Dying)
    dying = actor.options(name=agent_name(spec, node_id()), namespace=NAMESPACE).remote()
    asked = RayStagingAgent(spec, node_id(), staging_of(spec, node_id()), RayConnector())
    with pytest.raises(HomeLostError, match=f"agent of node {node_id()}.*; look at that node"):
        asked.is_stored("attempt")
    ray.kill(dying)


class Slow(ReplicaService):
    """An agent whose disk takes for ever."""

    def __init__(self) -> None:
        self._came_bytes = Counter()
        intake = SimpleNamespace(flush=lambda attempt, timeout_s: time.sleep(250.0))
        entrance = SimpleNamespace(lacks={"tcp": ""})
        self._door: Any = SimpleNamespace(intake=intake, entrance=entrance)

    def has_room(self) -> bool:
        return True


class Flipping:
    """An agent of the home node, from which so many ranges of a file come damaged."""

    def __init__(self, flips_count: int) -> None:
        self._flips_count = flips_count

    def read_copy(
        self, checkpoint: str, key: str, offset_bytes: int, length_bytes: int
    ) -> tuple[str, Any]:
        data = np.frombuffer(LARGE, dtype=np.uint8)[offset_bytes : offset_bytes + length_bytes]
        digest = digest_of(data.tobytes())
        if self._flips_count > 0:
            self._flips_count -= 1
            data = data ^ 1
        return digest, data


LARGE = bytes(range(256)) * (5 << 17) + b"its end"


@pytest.mark.parametrize("flips_count", [0, 2])
def test_a_range_of_a_far_copy_that_arrives_damaged_is_asked_for_again(
    local_ray: None, flips_count: int
) -> None:
    agent = ray.remote(num_cpus=0)(Flipping).remote(flips_count)
    copy = FarCopy(agent, "t/checkpoint_000000", 60.0)
    assert copy.read("t/checkpoint_000000/large", 0, len(LARGE)) == LARGE
    assert copy.read("t/checkpoint_000000/large", 7, 5) == LARGE[7:12]
    ray.kill(agent)


def test_a_far_copy_that_arrives_damaged_each_time_is_an_error(local_ray: None) -> None:
    agent = ray.remote(num_cpus=0)(Flipping).remote(1000)
    with pytest.raises(DamagedError, match=f"arrived damaged from home {TRIES_COUNT} times"):
        FarCopy(agent, "t/checkpoint_000000", 60.0).read("t/checkpoint_000000/large", 0, 10)
    ray.kill(agent)


class Answering:
    """An agent that has stored what it had staged; it takes so long to say so."""

    def __init__(self, stored: dict[str, str], answer_s: float) -> None:
        self._stored, self._answer_s = stored, answer_s
        self._asked_s: list[float] = []

    def exchange(self, orders: Orders) -> News:
        self._asked_s.append(time.monotonic())
        time.sleep(self._answer_s)
        return News(held=list(self._stored), stored=self._stored)

    def finish(self, options: object) -> News:
        return self.exchange(Orders())

    def asked_s(self) -> list[float]:
        return self._asked_s


class LiveNodes(RayNodes):
    """Nodes that Ray does not know, and that are there."""

    def alive_nodes(self) -> set[str]:
        return {"hangs", "slow", "well"}


def answering(spec: Spec, node: str, stored: dict[str, str], answer_s: float) -> Any:
    actor = ray.remote(num_cpus=0, max_concurrency=4)(Answering)
    named = actor.options(name=agent_name(spec, node), namespace=NAMESPACE)
    agent = named.remote(stored, answer_s)
    assert ray.get(agent.asked_s.remote(), timeout=150) == []
    return agent


def test_all_agents_of_an_earlier_run_send_while_one_is_waited_for(local_ray: None) -> None:
    spec = Spec("key", "/results", uuid.uuid4().hex, "0" * 32, None, Options())
    agents = [answering(spec, node, {}, 600.0) for node in ("one", "other")]
    waiting = threading.Thread(target=finish_earlier, args=(spec.where, 0.0))
    waiting.start()
    time.sleep(2.0)
    end_s = time.monotonic() + 150.0  # each of them would be waited for several times as long
    while not all(ray.get(agent.asked_s.remote(), timeout=150) for agent in agents):
        assert time.monotonic() < end_s, "one is asked after the other"
        time.sleep(0.1)
    for agent in agents:
        ray.kill(agent)
    waiting.join(150.0)
    assert not waiting.is_alive()


def test_an_agent_that_hangs_delays_nothing_of_the_others(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = Spec("key", "/results", "exp", uuid.uuid4().hex, None, Options())
    home = LocalHome(tmp_path)
    times_s = {"hangs": 600.0, "slow": 0.8, "well": 0.0}
    names = {node: f"t/checkpoint_{number:06}" for number, node in enumerate(times_s)}
    made: dict[str, Any] = {}
    for node, answer_s in times_s.items():
        there = sealed(home.committer, {"a": b"1"}, names[node], ranks_count=1)
        made[node] = answering(spec, node, {node: there}, answer_s)
    publisher = Publisher(home.committer)
    # As long as that it is not asked anew, however slow the machine is.
    with monkeypatch.context() as patient:
        patient.setattr(node_agents, "ANSWER_TIMEOUT_S", times_s["hangs"])
        behind = Behind(home, publisher, LiveNodes(spec))
        began_s = time.monotonic()
        for node, checkpoint in names.items():
            behind.accept(checkpoint, False, [f"{node}@{node}"], None)
        while not all((tmp_path / names[node] / "a").exists() for node in ("slow", "well")):
            assert time.monotonic() - began_s < 150.0, "one agent hangs"
            time.sleep(0.05)
        while len(ray.get(made["well"].asked_s.remote(), timeout=150)) < 5:
            assert time.monotonic() - began_s < 150.0, "it waits for the one that hangs"
            time.sleep(0.1)
        assert not (tmp_path / names["hangs"]).exists()
        asked_s = ray.get(made["hangs"].asked_s.remote(), timeout=150)
        assert len(asked_s) == 1, "it is not asked anew"
    behind.close(10.0)
    publisher.close(10.0)
    for agent in made.values():
        ray.kill(agent)


def test_questions_are_answered_while_all_wait_for_a_slow_disk(local_ray: None) -> None:
    actor = ray.remote(num_cpus=0, concurrency_groups=GROUPS)(Slow)
    agent = actor.options(max_concurrency=CALL_THREADS).remote()
    assert ray.get(agent.has_room.remote(), timeout=150)
    for _ in range(2 * CALL_THREADS):
        agent.flush_replica.remote("0" * 32, "tcp")
    time.sleep(0.5)
    assert ray.get(agent.has_room.remote(), timeout=150)  # a disk takes longer
    ray.kill(agent)


@pytest.mark.parametrize("is_closing", [False, True])
def test_an_agent_that_has_ended_is_started_again_by_a_driver_that_goes_on(
    local_ray: None, tmp_path: Path, *, is_closing: bool
) -> None:
    """It was taken for left alone, as the driver was stopped, and nobody reports there any more."""
    options = Options(wait_for="staged", staging_dir=str(tmp_path / "staging"))
    spec, node = Spec("key", str(tmp_path), "exp", uuid.uuid4().hex, None, options), node_id()
    nodes, found = RayNodes(spec, None, RayConnector()), list[Any]()

    def has_answered() -> bool:
        found.extend(nodes.exchange([node], lambda _: Orders(is_closing=is_closing)).values())
        return bool(found)

    wait_for(has_answered, "an answer")
    assert isinstance(found[0], ValueError if is_closing else News)
    nodes.close([node])
