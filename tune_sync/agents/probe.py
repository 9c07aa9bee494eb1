"""Looks from every node that may run trials whether a directory is shared, before training starts.

Nodes with neither CPUs nor GPUs run no trials, and need not see it; the driver's node has to.
Nodes that join later are looked at by the first trial there; see `SharedHome.check_here`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_sync.errors import NotSharedError
from tune_sync.homes.shared.probe import Mark, look

# A new process of Ray on a busy machine takes seconds, one that needs an environment, a minute.
PROBE_TIMEOUT_S = 120.0
# What a task says that found itself on another node: its own has left the cluster meanwhile.
GONE = "gone"


def check_shared(root: str) -> None:
    """Write a file in a directory from every node that may run trials, and read it here.

    Args:
        root: The experiment directory; it is there on this node.

    Raises:
        NotSharedError: Nodes do not see it, or cannot write there; names all of them, and why.
    """
    with Mark(root) as mark:
        asked = [(node, ask(_probe, str(mark.path), node["NodeID"])) for node in trial_nodes()]
        end_s = time.monotonic() + PROBE_TIMEOUT_S
        troubles = [(node, _trouble(node, ref, mark, end_s)) for node, ref in asked]
    wrong = [f"{name_of(node)}: {trouble}" for node, trouble in troubles if trouble]
    if wrong:
        raise NotSharedError(
            f"{root} is not shared by all nodes. {'. '.join(wrong)}. Mount the same directory "
            'there, or leave upload_dir out and use tune_sync.SyncConfig(syncer="auto"): it needs '
            "no shared storage"
        )


def trial_nodes() -> list[dict[str, Any]]:
    """The living nodes that may run trials, as Ray tells of them."""
    return [node for node in ray.nodes() if node["Alive"] and runs_trials(node["Resources"])]


def name_of(node: Mapping[str, Any]) -> str:
    """A node, for messages."""
    return f"node {node['NodeID']} ({node['NodeManagerAddress']})"


def runs_trials(resources: Mapping[str, float]) -> bool:
    """Whether a node with these may run trials."""
    return bool(resources.get("CPU") or resources.get("GPU"))


def ask(probe: Callable[..., Any], *args: object, env_vars: Mapping[str, str] | None = None) -> Any:
    """Call a function on the node whose id is the last argument; returns the reference.

    `env_vars`: What its environment has besides.
    """
    strategy = NodeAffinitySchedulingStrategy(str(args[-1]), soft=True)
    env = {"runtime_env": {"env_vars": dict(env_vars)}} if env_vars else {}
    task = ray.remote(num_cpus=0, max_retries=1, scheduling_strategy=strategy, **env)(probe)
    return task.remote(*args)


def answer(ref: Any, end_s: float) -> Any:
    """What a node says; waits until `end_s`, of the monotonic clock. It is one for all nodes.

    Raises:
        RayError: It did not answer, or what was asked of it failed there.
    """
    return ray.get(ref, timeout=max(0.0, end_s - time.monotonic()))


def _trouble(node: Mapping[str, Any], ref: Any, mark: Mark, end_s: float) -> str:
    try:
        trouble = str(answer(ref, end_s))
    except ray.exceptions.RayError as error:
        return f"it cannot be asked: {error}"
    if not trouble and not mark.has_answer(node["NodeID"]):
        return "what it writes there does not arrive on the driver's node"
    return "" if trouble == GONE else trouble


def _probe(mark: str, node_id: str) -> str:
    """What is wrong with a directory on this node; "" if nothing is."""
    if ray.get_runtime_context().get_node_id() != node_id:
        return GONE
    return look(mark, node_id)
