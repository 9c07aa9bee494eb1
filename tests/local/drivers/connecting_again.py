"""A driver that connects to a running cluster (RAY_ADDRESS), runs a search, and does so again."""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import ray
from ray import tune

from tune_sync import RunConfig
from tune_sync.agents.connect import node_id, start_home
from tune_sync.agents.home_agent import NAMESPACE
from tune_sync.agents.names import agent_name
from tune_sync.agents.node_agents import RayNodes
from tune_sync.agents.options_agent import ask_options, start_options
from tune_sync.sending.orders import News, Orders
from tune_sync.spec import Options, Spec

PATIENCE_S = 60.0
SPEC = Spec("key", "bucket", "exp", "0" * 32, None, Options(), "s3")


class OutlivingAgent:
    """As that of a node, which goes on where its driver has gone."""

    def exchange(self, orders: Orders) -> News:
        return News()


def train_fn(config: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tune.report({"score": 1}, checkpoint=tune.Checkpoint.from_directory(folder))


storage, told, nodes = sys.argv[1], [], RayNodes(SPEC)
for name in ("one", "two"):
    ray.init()
    if name == "one":
        kind, where = ray.remote(num_cpus=0)(OutlivingAgent), agent_name(SPEC, node_id())
        kind.options(name=where, namespace=NAMESPACE, lifetime="detached").remote()
    while nodes.exchange([node_id()], lambda node: Orders()) != {node_id(): News()}:
        pass  # it is being started
    agent = start_home(node_id()).agent_name  # as for trials on another node
    options = ask_options(start_options({"secret": name}), PATIENCE_S)
    (result,) = tune.Tuner(train_fn, run_config=RunConfig(name=name, storage_path=storage)).fit()
    if name == "two":
        ray.kill(ray.get_actor(agent_name(SPEC, node_id()), namespace=NAMESPACE))
    told.append((agent, options, result.metrics["score"], bool(result.checkpoint)))
    ray.shutdown()
print(json.dumps(told))
