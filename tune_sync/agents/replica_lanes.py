"""How replicas go from this process to another node's agent."""

from __future__ import annotations

from typing import Any

import ray

from tune_sync.agents.replica_home import ObjectStoreLane, peer_error
from tune_sync.behind.lane_choice import LaneChoice
from tune_sync.behind.replica_door import Entrance
from tune_sync.spec import Options


def lanes_to(agent: Any, options: Options, timeout_s: float, before: str = "") -> LaneChoice:
    """The lanes to a node.

    Args:
        agent: Handle of its agent.
        options: Of the run.
        timeout_s: How long to wait for any one answer.
        before: What was used until now; "" if nothing was.
    """

    def knock() -> Entrance:
        try:
            entrance: Entrance = ray.get(agent.replica_door.remote(), timeout=timeout_s)
        except ray.exceptions.RayError as error:
            raise peer_error(error, timeout_s) from error
        return entrance

    by_store = ObjectStoreLane(agent)
    return LaneChoice(options, knock, agent.flush_replica.remote, by_store, timeout_s, before)
