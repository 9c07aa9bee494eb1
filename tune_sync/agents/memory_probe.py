"""Looks at the shared memory of every node that may run trials, before training starts."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray

from tune_sync.agents.probe import PROBE_TIMEOUT_S, answer, ask, name_of, trial_nodes
from tune_sync.errors import ConfigError
from tune_sync.fastpath.budget import Budget
from tune_sync.fastpath.pages import room_bytes
from tune_sync.fastpath.sizing import shortage
from tune_sync.spec import Options

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


def check_memory(options: Options) -> None:
    """Warn of nodes that have less than a run may take.

    Args:
        options: Of the run.

    Raises:
        ConfigError: No node has what the user asked for.
    """
    nodes = trial_nodes()
    asked = [(node, ask(_room, options.memory_dir, node["NodeID"])) for node in nodes]
    end_s = time.monotonic() + PROBE_TIMEOUT_S
    short = {node["NodeID"]: _shortage(node, ref, options, end_s) for node, ref in asked}
    troubles = [
        f"{name_of(node)}: {short[node['NodeID']]}" for node in nodes if short[node["NodeID"]]
    ]
    if options.memory_limit_bytes and nodes and len(troubles) == len(nodes):
        raise ConfigError(f"FastPath(memory_limit=...): no node has it. {'. '.join(troubles)}")
    for trouble in troubles:
        logger.warning("%s; checkpoints that find no room there are staged on its disk", trouble)


def _shortage(node: Mapping[str, Any], ref: Any, options: Options, end_s: float) -> str:
    try:
        free_bytes, total_bytes = answer(ref, end_s)
    except (OSError, ray.exceptions.RayError) as error:
        return f"its shared memory cannot be looked at: {error}"
    store_bytes = int(node["Resources"].get("object_store_memory", 0))
    return shortage(options.memory_limit_bytes, free_bytes, total_bytes, store_bytes)


def _room(root: str, node_id: str) -> tuple[int, int]:
    """Bytes that checkpoints may have, and all there are.

    What checkpoints of other runs take is within the limit, too: it is theirs together.
    """
    free_bytes, total_bytes = room_bytes(Path(root))
    return min(total_bytes, free_bytes + Budget(Path(root)).taken_bytes), total_bytes
