"""How replicas go from this process to another node's agent."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import ray

from tune_sync.agents.replica_home import ObjectStoreLane, peer_error
from tune_sync.behind.lane_choice import LaneChoice
from tune_sync.behind.replica_door import Entrance
from tune_sync.spec import Options

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


class Warnings:
    """What is said of fallbacks where each copy looks for a lane of its own: once for a node."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str, str]] = set()
        self._said_lock = threading.Lock()

    def to(self, node: str) -> Callable[..., None]:
        """What `LaneChoice` takes as `warn`, of the lanes to a node."""

        def warn(message: str, wanted: str, used: str, why: object) -> None:
            with self._said_lock:
                is_new = (node, wanted, used) not in self._said
                self._said.add((node, wanted, used))
            level = logging.WARNING if is_new else logging.DEBUG
            logger.log(level, f"to node %s {message}", node, wanted, used, why)

        return warn


def lanes_to(
    agent: Any, options: Options, timeout_s: float, before: str = "",
    warn: Callable[..., None] = logger.warning,
) -> LaneChoice:  # fmt: skip
    """The lanes to a node.

    Args:
        agent: Handle of its agent.
        options: Of the run.
        timeout_s: How long to wait for any one answer.
        before: What was used until now; "" if nothing was.
        warn: See `LaneChoice`.
    """

    def knock() -> Entrance:
        try:
            entrance: Entrance = ray.get(agent.replica_door.remote(), timeout=timeout_s)
        except ray.exceptions.RayError as error:
            raise peer_error(error, timeout_s) from error
        return entrance

    by_store = ObjectStoreLane(agent)
    flush = agent.flush_replica.remote
    return LaneChoice(options, knock, flush, by_store, timeout_s, before, warn)
