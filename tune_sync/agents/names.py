"""How the actors of a run are called in Ray, so that others find them."""

from __future__ import annotations

import hashlib

from tune_sync.spec import Spec

# What the names of all node agents begin with.
STAGE = "stage-"


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
