"""`RayStagingAgent`: a node's agent, as the processes that stage on the node see it."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError

from tune_sync.agents.home_agent import START_TIMEOUT_S
from tune_sync.agents.home_errors import said_by
from tune_sync.agents.node_agent import launch_node_agent, limit_bytes, start_node_agent
from tune_sync.agents.remote_home import AGAIN_S
from tune_sync.behind.left_behind import mark_as
from tune_sync.behind.node_disk import bytes_below
from tune_sync.errors import HomeLostError
from tune_sync.spec import Connector, Spec

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# After so long it is said that an answer is waited for.
SAY_S = 60.0
LOOK_THERE = "look at that node (its memory, its disk, its Ray logs)"


class RayStagingAgent:
    """See `staging_home.StagingAgent`: the agent of this node, started here, and not waited for.

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
        with suppress(OSError):  # on a full disk its agent says it, the next time
            mark_as(root, spec.where, spec.begun_by)
        self._launch()

    def _launch(self) -> None:
        self._handle = launch_node_agent(self._spec, self._node, self._root, self._connector)
        self._launched_s = time.monotonic()
        self._is_up, self._first_ping = False, self._handle.ping.remote()

    def has_room(self) -> bool:
        """See `StagingAgent.has_room`. Until the agent is up, what is on the disk tells."""
        if not self._is_up and not self._has_started():
            limit = limit_bytes(self._spec.options.staging_limit_bytes, self._root)
            return bytes_below(self._root) < limit
        return bool(self._ask("has_room"))

    def _has_started(self) -> bool:
        """Whether it answers, or ought to by now: a report need not wait for its start."""
        answered, _ = ray.wait([self._first_ping], timeout=0)
        self._is_up = bool(answered) or time.monotonic() - self._launched_s > START_TIMEOUT_S
        return self._is_up

    def make_room(self) -> None:
        """See `StagingAgent.make_room`."""
        self._ask("make_room")

    def free_memory(self, trial: str) -> bool:
        """See `StagingAgent.free_memory`."""
        return bool(self._ask("free_memory", trial))

    def wake(self) -> None:
        """See `StagingAgent.wake`."""
        self._handle.wake.remote()

    def tell_unreplicated(self, why: str) -> None:
        """Have `status` tell which report has no replica, and why. Not waited for."""
        self._handle.tell_unreplicated.remote(why)

    def is_settled(self, attempt: str) -> bool:
        """See `StagingAgent.is_settled`."""
        return bool(self._ask("is_settled", attempt))

    def why_not_stored(self, attempt: str) -> str:
        """See `StagingAgent.why_not_stored`."""
        return str(self._ask("why_not_stored", attempt))

    def is_stored(self, attempt: str) -> bool:
        """See `StagingAgent.is_stored`."""
        return bool(self._ask("is_stored", attempt))

    def bring(self, checkpoint: str) -> bool:
        """See `BroughtCopies.bring`."""
        if not ray.wait([self._first_ping], timeout=START_TIMEOUT_S)[0]:
            return False
        try:
            return self._bring(checkpoint)
        except RayActorError:
            self._handle = self._start()
            return self._bring(checkpoint)

    def _bring(self, checkpoint: str) -> bool:
        return bool(
            ray.get(self._handle.bring.remote(checkpoint), timeout=self._spec.options.timeout_s)
        )

    def _ask(self, verb: str, *args: object) -> Any:
        """What the agent says: one that has died is started again, once.

        Raises:
            HomeLostError: It has died again; or it was stopped, or away, until `sync_timeout`.
        """
        begun_s, has_died, is_said, ref = time.monotonic(), False, False, None
        while True:
            end_s = self._end_s(begun_s)
            left_s = max(end_s - time.monotonic(), 0.0)
            ref = getattr(self._handle, verb).remote(*args) if ref is None else ref
            try:
                return ray.get(ref, timeout=left_s if is_said else min(left_s, SAY_S))
            except (RayActorError, GetTimeoutError) as error:
                is_away = isinstance(error, GetTimeoutError | ActorUnavailableError)
                if time.monotonic() + AGAIN_S > end_s if is_away else has_died:
                    raise HomeLostError(
                        f"the agent of node {self._node} did not answer for "
                        f"{time.monotonic() - begun_s:.0f} s: {said_by(error)}; {LOOK_THERE}, then "
                        "report the checkpoint again, or restore the run"
                    ) from error
                if is_away and not is_said:
                    logger.warning(
                        "%s: the agent of node %s does not answer, goes on waiting for %.0f s "
                        "(sync_timeout): %s; %s", self._spec.where, self._node,
                        end_s - time.monotonic(), said_by(error), LOOK_THERE,
                    )  # fmt: skip
                    is_said = True
                ref = ref if isinstance(error, GetTimeoutError) else None
            if not is_away:
                has_died = True
                self._launch()
            elif ref is None:
                time.sleep(AGAIN_S)

    def _end_s(self, begun_s: float) -> float:
        """Until when an answer is waited for: a start may take longer than `sync_timeout`."""
        end_s = begun_s + self._spec.options.timeout_s
        is_up = self._is_up or self._has_started()
        return end_s if is_up else max(end_s, self._launched_s + START_TIMEOUT_S)

    def _start(self) -> Any:
        return start_node_agent(self._spec, self._node, self._root, self._connector)
