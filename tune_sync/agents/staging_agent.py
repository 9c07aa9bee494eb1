"""`RayStagingAgent`: a node's agent, as the processes that stage on the node see it."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from tune_sync.agents.home_agent import START_TIMEOUT_S
from tune_sync.agents.home_errors import said_by
from tune_sync.agents.node_agent import launch_node_agent, limit_bytes, start_node_agent
from tune_sync.behind.left_behind import mark_as
from tune_sync.behind.node_disk import bytes_below
from tune_sync.errors import HomeLostError
from tune_sync.spec import Connector, Spec

ANSWER_TIMEOUT_S = 60.0


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
        self._handle = launch_node_agent(spec, node, root, connector)
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
        try:
            return self._answer(verb, *args)
        except (RayActorError, GetTimeoutError):
            self._handle = self._start()
        try:
            return self._answer(verb, *args)
        except (RayActorError, GetTimeoutError) as error:
            raise HomeLostError(
                f"the agent of node {self._node} does not answer: {said_by(error)}; look at that "
                "node (its memory, its disk, its Ray logs), then report the checkpoint again, or "
                "restore the run"
            ) from error

    def _answer(self, verb: str, *args: object) -> Any:
        return ray.get(getattr(self._handle, verb).remote(*args), timeout=ANSWER_TIMEOUT_S)

    def _start(self) -> Any:
        return start_node_agent(self._spec, self._node, self._root, self._connector)
