"""How the actors of a run are called in Ray, so that others find them."""

from __future__ import annotations

import hashlib

from tune_sync.spec import Spec


def agent_name(spec: Spec, node: str) -> str:
    """The name of a run's agent on a node."""
    return f"{names_of(spec.where)}{spec.owner}-{node}"


def names_of(where: str) -> str:
    """What the names of all agents of an experiment directory begin with."""
    return f"stage-{hashlib.sha256(where.encode()).hexdigest()[:16]}-"


def keeper_of(spec: Spec) -> str:
    """The name of the actor that keeps a run's `storage_options`."""
    return f"options-of-{names_of(spec.where)}{spec.owner}"
