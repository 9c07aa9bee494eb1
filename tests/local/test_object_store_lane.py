"""Ray's object store is a lane, to the actor that other nodes call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.contract.lane_contract import WAIT_S, LaneContract, replicas_at
from tune_sync.agents.replica_home import ObjectStoreLane
from tune_sync.agents.replica_service import GROUPS, ReplicaService
from tune_sync.behind.replica_lane import ReplicaLane
from tune_sync.spec import Options


class Taker(ReplicaService):
    """What a node's agent does for other nodes, and nothing else."""

    def __init__(self, root: Path) -> None:
        self._take_replicas(replicas_at(root), Options())

    def is_up(self) -> bool:
        return True


@pytest.mark.usefixtures("local_ray")
class TestObjectStore(LaneContract):
    @contextmanager
    def opened(self, root: Path) -> Iterator[ReplicaLane]:
        agent = ray.remote(num_cpus=0, concurrency_groups=GROUPS)(Taker).remote(root)
        ray.get(agent.is_up.remote(), timeout=WAIT_S)
        lane = ObjectStoreLane(agent)
        yield lane
        lane.close()
        ray.kill(agent)

    def wait(self, ref: Any) -> None:
        if ref is not None:
            ray.get(ref, timeout=WAIT_S)
