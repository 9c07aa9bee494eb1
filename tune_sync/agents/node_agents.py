"""The agents of all nodes, as the driver reaches them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from tune_sync.agents.home_agent import NAMESPACE, START_TIMEOUT_S
from tune_sync.agents.names import agent_name, names_of
from tune_sync.behind.behind import NodeLostError
from tune_sync.sending.orders import News, Orders
from tune_sync.spec import Spec

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# An agent that does not answer for so long is asked again later.
ANSWER_TIMEOUT_S = 20.0
LOOK_S = 0.5
SAY_S = 5.0


class RayNodes:
    """See `behind.behind.Nodes`.

    Args:
        spec: Of the run.
    """

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._handles: dict[str, Any] = {}

    def exchange(self, node: str, orders: Orders) -> News:
        """See `Nodes.exchange`."""
        try:
            return self._ask(node, orders)
        except (ValueError, RayActorError, GetTimeoutError):
            self._handles.pop(node, None)
            self._check(node)
            raise

    def _ask(self, node: str, orders: Orders) -> News:
        handle = self._handles.get(node)
        if handle is None:
            self._check(node)  # Ray waits long for the actor of a node that is gone
            name = agent_name(self._spec, node)
            handle = self._handles[node] = ray.get_actor(name, namespace=NAMESPACE)
        ref = handle.exchange.remote(orders)
        end_s = time.monotonic() + ANSWER_TIMEOUT_S
        while not ray.wait([ref], timeout=LOOK_S)[0] and time.monotonic() < end_s:
            self._check(node)
        news: News = ray.get(ref, timeout=LOOK_S)
        return news

    def _check(self, node: str) -> None:
        if not self.is_alive(node):
            raise NodeLostError(f"node {node} is gone")

    def is_alive(self, node: str) -> bool:
        """See `Nodes.is_alive`."""
        return _is_alive(node)


def _is_alive(node: str) -> bool:
    """Whether Ray says that a node lives."""
    return any(found["NodeID"] == node and found["Alive"] for found in ray.nodes())


def finish_earlier(where: str, timeout_s: float, options: Mapping[str, Any] | None = None) -> None:
    """Wait until the agents of an earlier run of an experiment have sent what they have.

    Args:
        where: The experiment directory.
        timeout_s: Go on if nothing moves for so long.
        options: `SyncConfig.storage_options`, which may have gone with that run's driver.
    """
    names = [
        found["name"]
        for found in ray.util.list_named_actors(all_namespaces=True)
        if found["namespace"] == NAMESPACE and str(found["name"]).startswith(names_of(where))
    ]
    for name in names:
        _finish(where, name, timeout_s, options)


def _finish(where: str, name: str, timeout_s: float, options: Mapping[str, Any] | None) -> None:
    node = name.rsplit("-", 1)[-1]
    moved_s, said_s, sent_bytes = time.monotonic(), 0.0, -1
    while True:
        try:
            handle = ray.get_actor(name, namespace=NAMESPACE)
            news: News = ray.get(handle.finish.remote(options), timeout=ANSWER_TIMEOUT_S)
        except ValueError:
            return  # it has ended: another restore has waited for it too
        except (RayActorError, GetTimeoutError) as error:
            patience_s = min(timeout_s, START_TIMEOUT_S)  # Ray may be starting it again
            if _is_alive(node) and time.monotonic() - moved_s < patience_s:
                time.sleep(LOOK_S)
                continue
            logger.warning("%s: an agent of an earlier run does not answer: %s", where, error)
            return
        now_s = time.monotonic()
        if news.sent_bytes != sent_bytes:
            moved_s, sent_bytes = now_s, news.sent_bytes
        if not news.left_count:
            handle.exchange.remote(Orders(is_closing=True))
            return
        if now_s - moved_s > timeout_s:
            logger.warning(
                "%s: %d checkpoints of an earlier run stay on node %s: %s",
                where, news.left_count, node, news.error or "nothing moves",
            )  # fmt: skip
            return
        if now_s - said_s > SAY_S:
            logger.warning(
                "%s: waiting for %d checkpoints (%.0f MB) of an earlier run, on node %s",
                where, news.left_count, news.left_bytes / 1e6, node,
            )  # fmt: skip
            said_s = now_s
        time.sleep(LOOK_S)
