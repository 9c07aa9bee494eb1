"""The home agent lives as long as the process that started it."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import ray

from tune_sync.agents.connect import node_id
from tune_sync.agents.home_agent import NAMESPACE, start_agent

# Ray ends an actor soon after nobody holds it.
SOON_S = 2.0


def test_an_agent_that_is_asked_for_by_many_threads_lives_on(local_ray: None) -> None:
    name = f"home-{uuid.uuid4().hex}"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: start_agent(name, node_id()), range(8)))
    agent = ray.get_actor(name, namespace=NAMESPACE)
    time.sleep(SOON_S)
    assert ray.get(agent.ping.remote()) == node_id()


def test_one_that_died_is_started_again(local_ray: None) -> None:
    name = f"home-{uuid.uuid4().hex}"
    start_agent(name, node_id())
    ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)
    start_agent(name, node_id())
    agent = ray.get_actor(name, namespace=NAMESPACE)
    assert ray.get(agent.ping.remote()) == node_id()
