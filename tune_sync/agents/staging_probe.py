"""Looks whether every node that may run trials can stage on its disk, before training starts.

Nodes that join later, and what breaks later, are found by the reports there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import ray

from tune_sync.agents.probe import GONE, PROBE_TIMEOUT_S, answer, ask, runs_trials
from tune_sync.behind.staging_roots import why_unusable
from tune_sync.errors import ConfigError
from tune_sync.spec import Spec

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


def check_staging(spec: Spec) -> None:
    """Write into the staging directory of every node that stages; it is made where it is not there.

    A node that does not answer is warned of: the reports there will tell.

    Args:
        spec: Of the run, with its address.

    Raises:
        ConfigError: There can be none on a node, or it may not be written; names both.
    """
    if not spec.options.stages:
        return
    # What is on a disk of the home node already is not staged on that beside it.
    leaves_out = "" if spec.options.memory_dir else spec.home_node
    nodes = [
        node for node in ray.nodes()
        if node["Alive"] and runs_trials(node["Resources"]) and node["NodeID"] != leaves_out
    ]  # fmt: skip
    asked = [(node, ask(_look, spec.options.staging_dir, node["NodeID"])) for node in nodes]
    end_s = time.monotonic() + PROBE_TIMEOUT_S
    for node, ref in asked:
        if trouble := _trouble(node, ref, end_s):
            raise ConfigError(f"SyncConfig(staging_dir=...): {_name(node)}: {trouble}")


def _trouble(node: Mapping[str, Any], ref: Any, end_s: float) -> str:
    try:
        trouble = str(answer(ref, end_s))
    except ray.exceptions.RayError as error:
        logger.warning("%s: its staging directory cannot be looked at: %s", _name(node), error)
        return ""
    return "" if trouble == GONE else trouble


def _name(node: Mapping[str, Any]) -> str:
    return f"node {node['NodeID']} ({node['NodeManagerAddress']})"


def _look(staging_dir: str, node_id: str) -> str:
    """Why this node cannot stage; "" if it can."""
    if ray.get_runtime_context().get_node_id() != node_id:
        return GONE
    return why_unusable(staging_dir)
