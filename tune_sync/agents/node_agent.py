"""The node agent: a Ray actor that sends on what the trials of a run have staged on its node.

One a run and node, started by the first trial that stages there. It is *detached*: it outlives
trials, and the driver long enough to send what is staged. It ends by itself.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_sync import layout
from tune_sync.agents.home_agent import CALL_THREADS, NAMESPACE, START_TIMEOUT_S
from tune_sync.behind.node_sender import NodeSender
from tune_sync.errors import HomeLostError
from tune_sync.homes.home import Home
from tune_sync.homes.lease import LEASE_TTL_S, Holder, holder_from_json
from tune_sync.homes.store import free_bytes
from tune_sync.sending.orders import News, Orders
from tune_sync.spec import Connector, Spec

logger = logging.getLogger("ray.tune_sync")

# How often it looks whether it is still of use.
WATCH_S = 5.0
# A driver that has not asked for so long may have died; its lease tells.
UNHEARD_S = 30.0
# Longer than any lease is believed in without a heartbeat.
SILENT_S = 3 * LEASE_TTL_S + 10
ANSWER_TIMEOUT_S = 60.0


class NodeAgent:
    """See the module's text.

    Args:
        name: Its own, in Ray.
        plain: From `Spec.to_plain`; the destination.
        root: The run's staging directory on this node.
        connector: How to reach the destination.
    """

    def __init__(
        self, name: str, plain: Mapping[str, Any], root: str, connector: Connector
    ) -> None:
        spec = Spec.from_plain(plain)
        self._name = name
        self._spec = spec
        self._connector = connector
        self._is_closing = False
        if spec.scheme:
            connector.storage_options(spec)  # as long as whoever knows them is there
        self._sender = NodeSender(
            Path(root), self._open_home, limit_bytes(spec.options.staging_limit_bytes, Path(root))
        )
        threading.Thread(target=self._watch, name="tune_sync-watch", daemon=True).start()

    def ping(self) -> int:
        """Its process, for tests and messages."""
        return os.getpid()

    def exchange(self, orders: Orders) -> News:
        """See `NodeSender.exchange`."""
        self._is_closing = self._is_closing or orders.is_closing
        return self._sender.exchange(orders)

    def has_room(self) -> bool:
        """See `StagingAgent.has_room`."""
        return self._sender.has_room()

    def make_room(self) -> None:
        """See `StagingAgent.make_room`."""
        self._sender.make_room()

    def wake(self) -> None:
        """See `StagingAgent.wake`."""
        self._sender.wake()

    def is_settled(self, attempt: str) -> bool:
        """See `StagingAgent.is_settled`."""
        return self._sender.is_settled(attempt)

    def finish(self) -> News:
        """Whoever asks will take over from the driver, which is dead: send all. Asked again."""
        self._sender.go_on_alone()
        return self._sender.status()

    # Inside

    def _open_home(self) -> Home:
        return self._connector.home(self._spec)

    def _watch(self) -> None:
        stop = threading.Event()
        while not stop.wait(WATCH_S):
            try:
                if self._is_of_no_use():
                    break
            except Exception as error:  # the destination does not answer: look again later
                logger.debug("%s: %s", self._name, error)
        self._sender.end()
        with suppress(ValueError, RayError):
            ray.kill(ray.get_actor(self._name, namespace=NAMESPACE), no_restart=True)

    def _is_of_no_use(self) -> bool:
        if self._is_closing:
            return True
        if self._sender.unheard_s < UNHEARD_S:
            return False
        holder = self._holder()
        if holder is None or holder.owner != self._spec.owner:
            if not self._sender.is_idle:
                logger.warning(
                    "%s: its run has ended, and what this node had still staged for it is removed",
                    self._spec.where,
                )  # fmt: skip
            return True
        if self._is_alive(holder):
            return False
        self._sender.go_on_alone()
        return self._sender.is_idle

    def _holder(self) -> Holder | None:
        home = self._open_home()
        found = home.info(layout.LEASE_KEY)
        if found is None:
            return None
        return holder_from_json(bytes(home.read(layout.LEASE_KEY, 0, found.size_bytes)))

    def _is_alive(self, holder: Holder) -> bool:
        return not holder.is_surely_dead and holder.age_s(time.time()) < SILENT_S


class RayStagingAgent:
    """See `staging_home.StagingAgent`: the agent of this node, started when it is first asked.

    Args:
        spec: Of the run.
        node: This Ray node.
        root: The run's staging directory here.
        connector: How to reach the destination.
    """

    def __init__(self, spec: Spec, node: str, root: Path, connector: Connector) -> None:
        self._spec = spec
        self._node = node
        self._root = root
        self._connector = connector
        self._handle = self._start()

    def has_room(self) -> bool:
        """See `StagingAgent.has_room`."""
        return bool(self._ask("has_room"))

    def make_room(self) -> None:
        """See `StagingAgent.make_room`."""
        self._ask("make_room")

    def wake(self) -> None:
        """See `StagingAgent.wake`."""
        self._handle.wake.remote()

    def is_settled(self, attempt: str) -> bool:
        """See `StagingAgent.is_settled`."""
        return bool(self._ask("is_settled", attempt))

    def _ask(self, verb: str, *args: object) -> Any:
        try:
            return ray.get(getattr(self._handle, verb).remote(*args), timeout=ANSWER_TIMEOUT_S)
        except (RayActorError, GetTimeoutError):
            self._handle = self._start()
            return ray.get(getattr(self._handle, verb).remote(*args), timeout=ANSWER_TIMEOUT_S)

    def _start(self) -> Any:
        return start_node_agent(self._spec, self._node, self._root, self._connector)


def start_node_agent(spec: Spec, node: str, root: Path, connector: Connector) -> Any:
    """Start a run's agent on a node, or find it there. Returns when it answers."""
    name = agent_name(spec, node)
    plain = replace(spec, options=spec.options.without_staging()).to_plain()
    handle = (
        ray.remote(NodeAgent)
        .options(
            name=name,
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=3,
            max_concurrency=CALL_THREADS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        .remote(name, plain, str(root), connector)
    )
    try:
        ray.get(handle.ping.remote(), timeout=START_TIMEOUT_S)
    except (GetTimeoutError, RayActorError) as error:
        raise HomeLostError(f"the agent of node {node} does not start: {error}") from error
    return handle


def agent_name(spec: Spec, node: str) -> str:
    """The name in Ray of a run's agent on a node."""
    return f"{names_of(spec.where)}{spec.owner}-{node}"


def names_of(where: str) -> str:
    """What the names of all agents of an experiment directory begin with."""
    return f"stage-{hashlib.sha256(where.encode()).hexdigest()[:16]}-"


def limit_bytes(given: int, root: Path) -> int:
    """How much a run may stage on a node: what was given, or a part of the room that there is."""
    return given or max(1, free_bytes(root) // 4)
