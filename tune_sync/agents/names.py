"""How the actors of a run are called in Ray, so that others find them."""

from __future__ import annotations

import hashlib

import ray

from tune_sync.spec import Spec

# What the names of all node agents begin with.
STAGE = "stage-"


def connection() -> str:
    """Tells this process's connection to a cluster: a handle of an earlier one is of no use.

    Ray numbers the jobs of a cluster; another cluster's may have the same number.
    """
    here = ray.get_runtime_context()
    return f"{here.get_job_id()}-{here.get_node_id()}"


def check_ray() -> None:
    """Raise ConnectionError where Ray has ended."""
    # A thread may be at it when its process ends. Ray's own calls would start Ray again.
    if not ray.is_initialized():
        raise ConnectionError("Ray has ended in this process, and is not started again to ask it")


def alive_nodes() -> set[str]:
    """All nodes that Ray says live. Raises ConnectionError where Ray has ended."""
    check_ray()
    return {str(found["NodeID"]) for found in ray.nodes() if found["Alive"]}


def agent_name(spec: Spec, node: str) -> str:
    """The name of a run's agent on a node."""
    return f"{names_of_run(spec.where, spec.owner)}{node}"


def node_of(name: str) -> str:
    """The node of an agent, by its name."""
    return name.rpartition("-")[2]


def names_of(where: str) -> str:
    """What the names of all agents of an experiment directory begin with."""
    return f"{STAGE}{hashlib.sha256(where.encode()).hexdigest()[:16]}-"


def names_of_run(where: str, owner: str) -> str:
    """What the names of a run's agents begin with; the node follows."""
    return f"{names_of(where)}{owner}-"


def keeper_of(spec: Spec) -> str:
    """The name of the actor that keeps a run's `storage_options`."""
    return f"options-of-{names_of(spec.where)}{spec.owner}"
