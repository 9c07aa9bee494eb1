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
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_sync import layout, storage_options
from tune_sync.agents.home_agent import CALL_THREADS, NAMESPACE, START_TIMEOUT_S
from tune_sync.agents.known_runs import KnownRun
from tune_sync.agents.meters import NodeMeters
from tune_sync.agents.names import agent_name, alive_nodes, keeper_of, names_of_run, node_of
from tune_sync.agents.options_keeper import keep_options
from tune_sync.agents.replica_service import GROUPS as REPLICA_GROUPS
from tune_sync.agents.replica_service import ReplicaService
from tune_sync.agents.shared_reads import GROUPS as READER_GROUPS
from tune_sync.agents.shared_reads import ReadService
from tune_sync.behind.duty import SILENT_S, STUCK_S, Step, check_dead, next_step
from tune_sync.behind.left_behind import Claim, move_to_disk, remove_sent
from tune_sync.behind.node_sender import NodeSender
from tune_sync.behind.replicas import Replicas
from tune_sync.behind.staging_roots import open_memory, staging_root, staging_roots
from tune_sync.behind.staging_sweep import sweep_memory, sweep_old, sweep_trash
from tune_sync.behind.state_copy import StateCopy
from tune_sync.buckets.environment import environment_options
from tune_sync.errors import HomeLostError, PathRefusedError, StoreDeniedError
from tune_sync.fastpath.folder import remove_empty, sweep
from tune_sync.homes.home import Home
from tune_sync.homes.store import free_bytes
from tune_sync.sending.orders import News, Orders
from tune_sync.spec import Connector, Spec

logger = logging.getLogger("ray.tune_sync")

# How often it looks whether it is still of use.
WATCH_S = 5.0
# A driver that has not asked for so long may have died; its lease tells.
UNHEARD_S = 30.0


class NodeAgent(ReplicaService, ReadService):
    """See the module's text.

    Args:
        name: Its own, in Ray.
        plain: From `Spec.to_plain`; the destination.
        root: The run's staging directory on this node; "" where another node starts this.
        connector: How to reach the destination.
    """

    def __init__(
        self, name: str, plain: Mapping[str, Any], root: str, connector: Connector
    ) -> None:
        spec = Spec.from_plain(plain)
        self._name = name
        self._spec = spec
        self._root = Path(root) if root else staging_of(spec, node_of(name))
        self._connector = connector
        self._is_closing = self._is_alone = self._gives_way = False
        self._look = threading.Event()
        self._has_swept = False
        self._memory = memory = open_memory(spec.options, spec.owner, node_of(name))
        roots = [self._root, *([memory.root] if memory else [])]
        self._claims = [Claim(root, spec.where, spec.begun_by) for root in roots]
        self._state_copy = StateCopy(self._root, self._open_home)
        if spec.scheme:
            connector.storage_options(spec)  # as long as whoever knows them is there
        options = spec.options
        self._sender = NodeSender(
            self._root, self._open_home, limit_bytes(options.staging_limit_bytes, self._root),
            memory=memory.root if memory else None,
            only_wanted=options.is_planned, only_expected=options.replicates,
            max_bytes_per_s=options.max_bandwidth_bytes_per_s, patience_s=options.timeout_s,
        )  # fmt: skip
        self._take_readers(
            spec, node_of(name), memory, self._open_home, self.free_memory,
            lambda node: start_node_agent(spec, node, None, connector),
        )  # fmt: skip
        replicas = Replicas(
            self._root, memory, self.free_memory, self._sender.forget,
            self._sender.has_room, options.checkpoint_depth, self._room_for_readers(),
        )  # fmt: skip
        self._take_replicas(replicas, options)
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

    def free_memory(self, trial: str) -> bool:
        """See `StagingAgent.free_memory`."""
        # Who asks for one trial has too many of that, not too many bytes.
        if not trial and (self._sender.removing.wait() or self._free_brought()):
            return True
        return self._sender.free_memory(trial)

    def wake(self) -> None:
        """See `StagingAgent.wake`."""
        self._sender.wake()

    def is_settled(self, attempt: str) -> bool:
        """See `StagingAgent.is_settled`."""
        return self._sender.is_settled(attempt)

    def why_not_stored(self, attempt: str) -> str:
        """See `StagingAgent.why_not_stored`."""
        return self._sender.why_not_stored(attempt)

    def is_stored(self, attempt: str) -> bool:
        """See `StagingAgent.is_stored`."""
        return self._sender.is_stored(attempt)

    def known_runs(self) -> list[KnownRun]:
        """Its run, and how far it is here, for those who ask from outside."""
        node, host = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
        news, came_by = self._sender.status(), list(self._came_by())
        news = replace(news, transports=came_by, unreplicated=self._unreplicated)
        return [KnownRun(self._spec.to_plain(), node, host, news)]

    def finish(self, options: Mapping[str, Any] | None = None, home: str = "") -> News | None:
        """Whoever asks will take over from the driver, which is dead: send all. Asked again.

        Args:
            options: `SyncConfig.storage_options`, which may have gone with the driver.
            home: The node that has the experiment directory of who asks; "": all nodes reach it.

        Returns:
            None if that is not where this sends to: it ends, and leaves all to who asks.

        Raises:
            LeaseHeldError: It is not, and a live run has that name there. Nothing is changed.
            HomeLostError: It is not, and whether a live run has it cannot be told just now.
        """
        if home and home != self._spec.home_node:
            self._check_is_dead()
            self._gives_way = True
            self._look.set()
            return None
        storage_options.keep(self._spec.key, options)
        self._is_alone = True
        return self._sender.go_on_alone()

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
        step, meters = Step.STAY, NodeMeters(self._spec.experiment)
        while step is Step.STAY:
            try:
                meters.show(self._sender.status())
                meters.show_replicas(self._came_by())
                self._share_options()
                for claim in self._claims:
                    claim.renew()
                self._sweep_once()
                self._sweep_replicas()
                self._sweep_brought()
                self._copy_state()
                step = self._next_step()
            except Exception as error:  # the destination does not answer: look again later
                logger.debug("%s: %s", self._name, error)
            if step is Step.STAY:
                self._look.wait(WATCH_S)
                self._look.clear()
        try:
            self._tidy(is_left=step is Step.LEAVE)
        except Exception as error:  # no disk keeps an agent for ever
            logger.warning("%s: what is staged here, in %s, stays: %s",
                           self._spec.where, self._root, error)  # fmt: skip
        for claim in self._claims:
            claim.give_up()
        with suppress(ValueError, RayError):
            ray.kill(ray.get_actor(self._name, namespace=NAMESPACE), no_restart=True)

    def _tidy(self, *, is_left: bool) -> None:
        """End what it does, and remove what is of no use any more."""
        # A live driver has said what that is. That a lease has gone says nothing of it: someone
        # has removed it, or it may only not be mounted.
        may_be_needed = self._is_alone or not self._is_closing
        self._sender.end(leave=is_left or may_be_needed)
        roots = [self._root, *([self._memory.root] if self._memory is not None else [])]
        is_left = is_left or (may_be_needed and not remove_sent(roots))
        self._close_replica_door()
        if self._memory is not None:
            if is_left and self._memory.root.exists():
                move_to_disk(self._memory.root, self._root)
            with suppress(OSError):
                sweep(self._memory.budget.folder)  # of this agent, where it was killed before
            remove_empty(self._memory.budget.folder)

    def _sweep_once(self) -> None:
        if not self._has_swept:
            self._has_swept = True
            staging = self._root.parents[1]
            sweep_memory(staging_roots(self._spec.options)[0], staging, time.time())
            sweep_old(staging, time.time())
            if self._memory is not None:
                sweep_trash(self._memory.root)

    def _copy_state(self) -> None:
        """Where only the driver's node has it. It may be lost with what is on that node."""
        spec = self._spec
        if not spec.scheme and not spec.options.shared and not self._is_closing:
            try:
                self._state_copy.renew()
            except Exception as error:  # nothing depends on it as long as that node is there
                logger.debug("%s: no copy of the state: %s", self._name, error)

    def _share_options(self) -> None:
        """Give the options to whoever keeps them for agents that are started again."""
        options, spec = storage_options.kept(self._spec.key), self._spec
        if not options:
            return
        try:
            keep_options(keeper_of(spec), names_of_run(spec.where, spec.owner), options)
        except (RayError, ValueError) as error:  # it is tried again at the next look
            logger.debug("%s: no keeper: %s", self._name, error)

    def _next_step(self) -> Step:
        if self._gives_way:
            return Step.LEAVE
        if self._is_closing:
            return Step.STAY if self._is_read() else Step.END
        if self._sender.unheard_s < UNHEARD_S:
            return Step.STAY
        if self._is_home_gone():
            logger.warning("%s: its node has gone; what is staged for it here, in %s, stays for "
                           "a restore", self._spec.where, self._root)  # fmt: skip
            return Step.LEAVE
        if self._has_lost_options():
            return self._without_options()
        if self._has_brought():
            return Step.STAY
        step = next_step(self._lease(), self._spec.owner, time.time())
        if step is Step.SEND_ALL:
            self._is_alone = True
            self._sender.go_on_alone()
            return self._alone()
        if step is Step.LEAVE:
            return self._taken_over()
        return step

    def _alone(self) -> Step:
        """The driver is dead: all is sent, as long as that gets on."""
        if self._sender.is_idle:
            return Step.END
        if self._sender.stuck_s < STUCK_S:
            return Step.STAY
        logger.warning("%s: nothing can be sent for a day; what is staged here, in %s, stays for "
                       "a restore", self._spec.where, self._root)  # fmt: skip
        return Step.LEAVE

    def _is_home_gone(self) -> bool:
        """Whether the node has gone whose disk this sends to. It never comes back by that id."""
        home = self._spec.home_node
        return bool(home) and home not in alive_nodes()

    def _check_is_dead(self) -> None:
        """Raise as `check_dead` for where this sends to."""
        if self._is_home_gone():
            return
        lease = None
        with suppress(PathRefusedError):  # the experiment was moved away from there
            lease = self._lease()
        check_dead(self._spec.where, lease, time.time())

    def _taken_over(self) -> Step:
        """Another run, or a cleanup that died, has the lease; what is here may be of use again."""
        self._is_alone = True
        self._sender.scan()
        if self._sender.is_idle:
            return Step.END
        logger.warning(
            "%s: the lease is another's; what is staged here, in %s, stays for the next restore",
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

    def _lease(self) -> bytes | None:
        """What the lease holds; cut short if it is replaced by a longer one just now."""
        home = self._open_home()
        found = home.info(layout.LEASE_KEY)
        return bytes(home.read(layout.LEASE_KEY, 0, found.size_bytes)) if found else None


def start_node_agent(spec: Spec, node: str, root: Path | None, connector: Connector) -> Any:
    """Start a run's agent on a node, or find it there. Returns when it answers.

    Args:
        spec: Of the run.
        node: The Ray node.
        root: The run's staging directory there; None: its agent knows.
        connector: How to reach the destination.
    """
    handle = launch_node_agent(spec, node, root, connector)
    try:
        ray.get(handle.ping.remote(), timeout=START_TIMEOUT_S)
    except RayError as error:  # not RayActorError alone: Ray cannot place it on a dead node
        raise HomeLostError(
            f"the agent of node {node} does not start: {error}; look at that node (its memory, its "
            "Ray logs), then report the checkpoint again, or restore the run"
        ) from error
    return handle


def staging_of(spec: Spec, node: str) -> Path:
    """The run's staging directory on this node."""
    return Path(staging_root(spec.options.staging_dir), spec.owner, node)


def launch_node_agent(spec: Spec, node: str, root: Path | None, connector: Connector) -> Any:
    """`start_node_agent`, without waiting for it."""
    name = agent_name(spec, node)
    plain = replace(spec, options=spec.options.without_staging()).to_plain()
    return (
        ray.remote(concurrency_groups=REPLICA_GROUPS | READER_GROUPS)(NodeAgent)
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
        .remote(name, plain, str(root or ""), connector)
    )


def limit_bytes(given: int, root: Path) -> int:
    """How much a run may stage on a node: what was given, or a part of the room that there is."""
    return given or max(1, free_bytes(root) // 4)
