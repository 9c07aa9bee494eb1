"""Looks whether every node that may run trials can stage on its disk, before training starts.

Nodes that join later, and what breaks later, are found by the reports there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import ray

from tune_sync.agents.probe import PROBE_TIMEOUT_S, answer, ask, name_of, trial_nodes
from tune_sync.behind.staging_roots import Trouble, trouble_of
from tune_sync.errors import ConfigError
from tune_sync.spec import Spec

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


# What a node does that cannot stage on its disk.
_BEHIND_MEMORY = "what finds no room in memory there goes to its destination, and is waited for"
_WITHOUT = "trials there have to wait for the destination at each report, or fail"


def check_staging(spec: Spec) -> None:
    """Try the staging directory of every node that stages. Nothing is left there.

    Which nodes trials will run on is not known: it is an error only where no node can stage. Others
    are warned of, as are those that do not answer: the reports there will tell.

    Args:
        spec: Of the run, with its address.

    Raises:
        ConfigError: There can be none on any node; or none may be written, and nothing is staged
            in memory. Names a node, and why.
    """
    if not spec.options.stages:
        return
    # What is on a disk of the home node already is not staged on that beside it.
    leaves_out = "" if spec.options.memory_dir else spec.home_node
    nodes = [node for node in trial_nodes() if node["NodeID"] != leaves_out]
    asked = [(node, ask(_look, spec.options.staging_dir, node["NodeID"])) for node in nodes]
    end_s = time.monotonic() + PROBE_TIMEOUT_S
    answers = [(name_of(node), _answer(node, ref, end_s)) for node, ref in asked]
    found = [(name, trouble) for name, trouble in answers if trouble is not None]
    has_memory = bool(spec.options.memory_dir)
    if found and all(t is not None and (t.is_hopeless or not has_memory) for _, t in answers):
        raise ConfigError(f"SyncConfig(staging_dir=...): {found[0][0]}: {found[0][1].why}")
    for name, trouble in found:
        instead = _BEHIND_MEMORY if has_memory and not trouble.is_hopeless else _WITHOUT
        logger.warning("SyncConfig(staging_dir=...): %s: %s. %s", name, trouble.why, instead)


def _answer(node: Mapping[str, Any], ref: Any, end_s: float) -> Trouble | None:
    try:
        found: Trouble | None = answer(ref, end_s)
    except ray.exceptions.RayError as error:
        logger.warning("%s: its staging directory cannot be looked at: %s", name_of(node), error)
        return None
    return found


def _look(staging_dir: str, node_id: str) -> Trouble | None:
    """Why this node cannot stage; None if it can, or has left the cluster meanwhile."""
    if ray.get_runtime_context().get_node_id() != node_id:
        return None
    return trouble_of(staging_dir)
