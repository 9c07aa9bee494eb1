"""Looks from every node of the cluster whether a directory is shared, before training starts."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_sync import layout
from tune_sync.errors import NotSharedError

# A new process of Ray on a busy machine takes seconds, one that needs an environment, a minute.
PROBE_TIMEOUT_S = 120.0


def check_shared(root: str) -> None:
    """Write a file in a directory from every node that is alive, and read it here.

    Args:
        root: The experiment directory; it is there on this node.

    Raises:
        NotSharedError: A node does not see it, or cannot write there; names both.
    """
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    mark = Path(root, layout.INTERNAL_DIR, f"probe-{uuid.uuid4().hex}")
    mark.mkdir()
    try:
        asked = [(node, _ask(_probe, str(mark), node["NodeID"])) for node in nodes]
        for node, ref in asked:
            _check(root, node, ref, mark)
    finally:
        for file in mark.iterdir():
            file.unlink()
        mark.rmdir()


def _ask(probe: Callable[..., str], *args: str) -> Any:
    strategy = NodeAffinitySchedulingStrategy(args[-1], soft=True)
    task = ray.remote(num_cpus=0, max_retries=1, scheduling_strategy=strategy)(probe)
    return task.remote(*args)


def _check(root: str, node: dict[str, Any], ref: Any, mark: Path) -> None:
    where = f"node {node['NodeID']} ({node['NodeManagerAddress']})"
    try:
        wrong = ray.get(ref, timeout=PROBE_TIMEOUT_S)
    except ray.exceptions.RayError as error:
        raise NotSharedError(f"{where} cannot be asked for {root}: {error}") from error
    if not wrong and not (mark / node["NodeID"]).exists():
        wrong = "what it writes there does not arrive here"
    if wrong:
        raise NotSharedError(
            f"{root} is not shared by {where}: {wrong}; mount the same directory there, or use "
            'tune_sync.SyncConfig(syncer="auto") without upload_dir, which needs no shared storage'
        )


def _probe(mark: str, node_id: str) -> str:
    """What is wrong with a directory on this node; "" if nothing is."""
    if ray.get_runtime_context().get_node_id() != node_id:
        return ""  # that node has gone meanwhile
    try:
        Path(mark, node_id).write_bytes(b"")
    except OSError as error:
        return str(error)
    return ""
