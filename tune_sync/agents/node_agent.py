"""The node agent: a Ray actor that sends on what the trials of a run have staged on its node.

One a run and node, started by the first trial that stages there. It is *detached*: it outlives
trials, and the driver long enough to send what is staged. It ends by itself.
"""

from __future__ import annotations

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

from tune_sync import layout, storage_options
from tune_sync.agents.home_agent import CALL_THREADS, NAMESPACE, START_TIMEOUT_S
from tune_sync.agents.names import agent_name, keeper_of, names_of
from tune_sync.agents.options_keeper import keep_options
from tune_sync.behind.duty import SILENT_S, Step, next_step
from tune_sync.behind.left_behind import Claim, sweep_old
from tune_sync.behind.node_sender import NodeSender
from tune_sync.buckets.environment import environment_options
from tune_sync.errors import HomeLostError, StoreDeniedError
from tune_sync.homes.home import Home
from tune_sync.homes.lease import Holder, holder_from_json
from tune_sync.homes.store import free_bytes
from tune_sync.sending.orders import News, Orders
from tune_sync.spec import Connector, Spec

logger = logging.getLogger("ray.tune_sync")

# How often it looks whether it is still of use.
WATCH_S = 5.0
# A driver that has not asked for so long may have died; its lease tells.
UNHEARD_S = 30.0
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
        self._root = Path(root)
        self._connector = connector
        self._is_closing = False
        self._has_swept = False
        self._claim = Claim(self._root, spec.where)
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

    def finish(self, options: Mapping[str, Any] | None = None) -> News:
        """Whoever asks will take over from the driver, which is dead: send all. Asked again.

        Args:
            options: `SyncConfig.storage_options`, which may have gone with the driver.
        """
        storage_options.keep(self._spec.key, options)
        self._sender.go_on_alone()
        return self._sender.status()

    # Inside

    def _open_home(self) -> Home:
        if self._has_lost_options():
            raise StoreDeniedError(
                f"the storage_options of {self._spec.where} have gone with its driver; restore the "
                "experiment with them, and this node sends what it has staged"
            )
        return self._connector.home(self._spec)

    def _has_lost_options(self) -> bool:
        """Whether there were `storage_options`, and nobody knows them any more."""
        spec = self._spec
        had_some = spec.scheme and spec.address is not None and spec.address.agent_name
        return bool(had_some) and not (
            self._connector.storage_options(spec) or environment_options()
        )

    def _watch(self) -> None:
        stop, step = threading.Event(), Step.STAY
        while step is Step.STAY:
            try:
                self._share_options()
                self._claim.renew()
                self._sweep_once()
                step = self._next_step()
            except Exception as error:  # the destination does not answer: look again later
                logger.debug("%s: %s", self._name, error)
            if step is Step.STAY:
                stop.wait(WATCH_S)
        self._sender.end(leave=step is Step.LEAVE)
        with suppress(ValueError, RayError):
            ray.kill(ray.get_actor(self._name, namespace=NAMESPACE), no_restart=True)

    def _sweep_once(self) -> None:
        if not self._has_swept:
            self._has_swept = True
            sweep_old(self._root.parents[1], time.time())

    def _share_options(self) -> None:
        """Give the options to whoever keeps them for agents that are started again."""
        options, spec = storage_options.kept(self._spec.key), self._spec
        if not options:
            return
        try:
            keep_options(keeper_of(spec), f"{names_of(spec.where)}{spec.owner}-", options)
        except (RayError, ValueError) as error:  # it is tried again at the next look
            logger.debug("%s: no keeper: %s", self._name, error)

    def _next_step(self) -> Step:
        if self._is_closing:
            return Step.END
        if self._sender.unheard_s < UNHEARD_S:
            return Step.STAY
        if self._has_lost_options():
            return self._without_options()
        step = next_step(self._holder(), self._spec.owner, time.time())
        if step is Step.SEND_ALL:
            self._sender.go_on_alone()
            return Step.END if self._sender.is_idle else Step.STAY
        if step is Step.LEAVE:
            return self._taken_over()
        return step

    def _taken_over(self) -> Step:
        """Another run goes on without what is here; if that dies early, it is of use again."""
        if self._sender.is_idle:
            return Step.END
        logger.warning(
            "%s: another run has it, and goes on without what this node had staged in %s",
            self._spec.where, self._root,
        )  # fmt: skip
        return Step.LEAVE

    def _without_options(self) -> Step:
        """Nothing can be sent, nor be asked: leave it for the next restore on this node."""
        if self._sender.unheard_s < SILENT_S:
            return Step.STAY
        logger.error(
            "%s: its storage_options have gone with its driver; what is staged for it in %s stays "
            "there, and is sent when the experiment is restored with them",
            self._spec.where, self._root,
        )  # fmt: skip
        return Step.LEAVE

    def _holder(self) -> Holder | None:
        home = self._open_home()
        found = home.info(layout.LEASE_KEY)
        if found is None:
            return None
        return holder_from_json(bytes(home.read(layout.LEASE_KEY, 0, found.size_bytes)))


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
        raise HomeLostError(
            f"the agent of node {node} does not start: {error}; look at that node (its memory, its "
            "Ray logs), then report the checkpoint again, or restore the run"
        ) from error
    return handle


def limit_bytes(given: int, root: Path) -> int:
    """How much a run may stage on a node: what was given, or a part of the room that there is."""
    return given or max(1, free_bytes(root) // 4)
