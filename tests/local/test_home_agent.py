"""One home agent serves all runs of a process."""

from __future__ import annotations

import time

import ray

from tune_sync.agents.connect import node_id, start_home
from tune_sync.agents.home_agent import NAMESPACE


def test_the_agent_outlives_each_start_of_a_further_run(local_ray: None) -> None:
    first = start_home(node_id())
    for _ in range(3):
        assert start_home(node_id()) == first
        time.sleep(1)  # Ray ends an actor without handles a moment later
        agent = ray.get_actor(first.agent_name, namespace=NAMESPACE)
        assert ray.get(agent.ping.remote(), timeout=30) == node_id()


def test_one_that_was_killed_is_started_anew(local_ray: None) -> None:
    address = start_home(node_id())
    ray.kill(ray.get_actor(address.agent_name, namespace=NAMESPACE), no_restart=True)
    time.sleep(1)
    assert start_home(node_id()) == address
    agent = ray.get_actor(address.agent_name, namespace=NAMESPACE)
    assert ray.get(agent.ping.remote(), timeout=30) == node_id()
