"""`RayReplicator`: copies what a trial has staged to another node."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import ray

from tune_sync.agents.node_agent import start_node_agent
from tune_sync.agents.probe import runs_trials
from tune_sync.agents.replica_home import ReplicaHome
from tune_sync.agents.replica_lanes import lanes_to
from tune_sync.behind.replica_lane import ReplicaLane
from tune_sync.behind.replicas import Room
from tune_sync.behind.replicating import NoPeerError, Replica
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.behind.staged_send import send_attempt
from tune_sync.errors import PeerLostError, StoreFullError, TransportMissingError
from tune_sync.manifest import Seal
from tune_sync.spec import Connector, Spec

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# One answer of the other node; a copy that gets none in that time is begun again.
ANSWER_TIMEOUT_S = 60.0
# How often a process says that the other node's memory is full: that goes on as it is.
SAY_S = 3600.0
# After which a lane that is not the best is left, to look whether a better one works again.
LOOK_AGAIN_S = 600.0
# For so long a required transport may not get through before reports fail: links are cut at times.
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class _Way:
    """How replicas go to another node; `again_s`, of the monotonic clock: look for a better one."""

    node: str
    agent: Any
    lane: ReplicaLane
    again_s: float


class RayReplicator:
    """See `behind.replicating.Replicator`. One a process; calls may come from any thread.

    Args:
        spec: Of the run.
        node: This Ray node.
        connector: How agents reach the destination.
    """

    def __init__(self, spec: Spec, node: str, connector: Connector) -> None:
        self._spec = spec
        self._node = node
        self._connector = connector
        self._home = spec.address.node_id if spec.address is not None else ""
        self._timeout_s = min(ANSWER_TIMEOUT_S, spec.options.timeout_s)
        self._said_s = float("-inf")
        self._way: _Way | None = None
        self._used = ""
        self._lost_since_s: float | None = None

    def copy(self, copies: StagedCopies, checkpoint: str, seal: Seal) -> Replica:
        """See `Replicator.copy`."""
        try:
            node = self._copy(copies, checkpoint, seal)
        except PeerLostError as error:
            self._lose(error)
            raise
        except BaseException:
            self._lost_since_s = None
            raise
        self._lost_since_s = None
        return Replica(node, sends=self._is_destination(node))

    def _copy(self, copies: StagedCopies, checkpoint: str, seal: Seal) -> str:
        if self._way is not None and time.monotonic() >= self._way.again_s:
            self._leave()
        way = self._way = self._way or self._find_way()
        try:
            self._send(way.agent, way.lane, copies, checkpoint, seal)
        except StoreFullError:
            raise
        except BaseException:  # another try looks for it again
            self._leave()
            raise
        return way.node

    def _leave(self) -> None:
        way, self._way = self._way, None
        if way is not None:
            way.lane.close()

    def _lose(self, error: PeerLostError) -> None:
        """Raise what ends the report, where a transport is required and has not worked for long."""
        now_s = time.monotonic()
        self._lost_since_s = self._lost_since_s or now_s
        patience_s = min(PATIENCE_S, self._spec.options.timeout_s)
        if self._spec.options.transport_required and now_s - self._lost_since_s >= patience_s:
            raise TransportMissingError(
                f"{error}; nothing was replicated for {patience_s:.0f} s: look at the network "
                "between the nodes, or do not require the transport"
            ) from error

    def _send(
        self, agent: Any, lane: ReplicaLane, copies: StagedCopies, checkpoint: str, seal: Seal
    ) -> None:
        try:
            self._send_to(agent, lane, copies, checkpoint, seal, "memory")
        except StoreFullError as error:
            self._say_full(checkpoint, error)
            self._send_to(agent, lane, copies, checkpoint, seal, "disk")

    def _say_full(self, checkpoint: str, error: StoreFullError) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s >= SAY_S:
            self._said_s = now_s
            logger.warning("a replica of %s goes to the other node's disk: %s", checkpoint, error)

    def _send_to(
        self,
        agent: Any,
        lane: ReplicaLane,
        copies: StagedCopies,
        checkpoint: str,
        seal: Seal,
        room: Room,
    ) -> None:
        home = ReplicaHome(agent, lane, seal, room, timeout_s=self._timeout_s)
        send_attempt(copies, checkpoint, seal, home)  # type: ignore[arg-type]

    def _find_way(self) -> _Way:
        node = peer_of(self._node, self._home)
        agent = start_node_agent(self._spec, node, None, self._connector)
        choice = lanes_to(agent, self._spec.options, self._timeout_s, self._used)
        lane = choice.lane()
        self._used = lane.name
        logger.info("replicas go to node %s by %r", node, lane.name)
        again_s = time.monotonic() + LOOK_AGAIN_S if choice.is_worth_another else float("inf")
        return _Way(node, agent, lane, again_s)

    def _is_destination(self, node: str) -> bool:
        """Whether results are kept on a node: then it has them already, and need not be sent."""
        spec = self._spec
        return not spec.scheme and not spec.options.shared and node == self._home


def peer_of(node: str, home: str) -> str:
    """Which node has replicas of what is staged on a node: the home node; its own the next one's.

    Raises:
        NoPeerError: No other node lives.
    """
    nodes = [n for n in ray.nodes() if n["Alive"] and n["NodeID"] != node]
    if any(found["NodeID"] == home for found in nodes):
        return home
    others = sorted(str(n["NodeID"]) for n in nodes if runs_trials(n["Resources"]))
    if not others:
        raise NoPeerError("there is no other node in this cluster")
    return next((other for other in others if other > node), others[0])
