"""The agents of all nodes, as the driver reaches them."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from tune_sync.agents.home_agent import NAMESPACE, START_TIMEOUT_S
from tune_sync.agents.known_runs import KnownRun
from tune_sync.agents.names import agent_name, alive_nodes, check_ray, connection, names_of, node_of
from tune_sync.agents.node_agent import launch_node_agent
from tune_sync.behind.nodes import NodeLostError
from tune_sync.errors import LeaseHeldError
from tune_sync.sending.orders import News, Orders
from tune_sync.sending.words import checkpoints
from tune_sync.spec import Connector, Spec

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# An agent that does not answer for so long is asked again.
ANSWER_TIMEOUT_S = 20.0
LOOK_S = 0.5
SAY_S = 5.0
# How long the end of the process waits for a question that is under way.
LEAVE_S = 5.0


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question that is under way."""

    ref: Any
    since_s: float


class RayNodes:
    """See `behind.nodes.Nodes`. At the end of the process it stops asking before Ray ends.

    Args:
        spec: Of the run.
        known_by: The agent that knows the run, from `connect.note_run`.
        connector: How agents reach the destination. One that has ended, as this driver was silent,
            is started again. None: that is left to the next report there.
    """

    def __init__(
        self, spec: Spec, known_by: Any = None, connector: Connector | None = None
    ) -> None:
        self._spec, self._connector = spec, connector
        self._known_by = known_by
        self._connection = ""
        self._handles: dict[str, Any] = {}
        self._asked: dict[str, _Asked] = {}
        self._asking = threading.Lock()
        self._has_left = False
        self._pid = os.getpid()
        atexit.register(self._leave)  # later than Ray's own hook, so it is called before that

    def exchange(
        self, nodes: Collection[str], orders: Callable[[str], Orders]
    ) -> dict[str, News | Exception]:
        """See `Nodes.exchange`. Of those that it asks now it waits for a moment, for none else."""
        with self._turn():
            return self._exchange(nodes, orders)

    def _exchange(
        self, nodes: Collection[str], orders: Callable[[str], Orders]
    ) -> dict[str, News | Exception]:
        self._forget_stale()
        self._asked = {node: asked for node, asked in self._asked.items() if node in nodes}
        now = [node for node in nodes if node not in self._asked]
        answers: dict[str, News | Exception] = self._start(now, orders)
        _wait([self._asked[node].ref for node in now if node in self._asked], LOOK_S)
        answers |= self._heard()
        silent = [node for node in nodes if not isinstance(answers.get(node), News)]
        for node in self._gone(silent):
            self._forget(node)
            answers[node] = NodeLostError(f"node {node} is gone")
        return answers

    def close(self, nodes: Collection[str]) -> None:
        """See `Nodes.close`."""
        with self._turn():
            self._forget_stale()
            self._asked = {}
            self._start(nodes, lambda node: Orders(is_closing=True))
            _wait([asked.ref for asked in self._asked.values()], ANSWER_TIMEOUT_S)
        atexit.unregister(self._leave)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """While a thread asks Ray; one at a time. Raises ConnectionError at the process's end."""
        with self._asking:
            if self._has_left:
                raise ConnectionError("this process ends, and asks Ray no more")
            yield

    def _leave(self) -> None:
        """Once Ray's hook has shut Ray down, a thread that asks starts a cluster of its own."""
        self._has_left = True
        if os.getpid() == self._pid:  # in a fork nobody gives the lock back
            self._asking.acquire(timeout=LEAVE_S)

    def _start(
        self, nodes: Iterable[str], orders: Callable[[str], Orders]
    ) -> dict[str, News | Exception]:
        """Ask nodes; returns what went wrong."""
        failed: dict[str, News | Exception] = {}
        # Ray waits long for the actor of a node that is gone.
        gone = self._gone([node for node in nodes if node not in self._handles])
        for node in (node for node in nodes if node not in gone):
            try:
                self._asked[node] = _Asked(self._ask(node, orders(node)), time.monotonic())
            except (ValueError, RayError) as error:
                self._forget(node)
                failed[node] = error
        return failed

    def _ask(self, node: str, orders: Orders) -> Any:
        check_ray()
        handle = self._handles.get(node)
        if handle is None:
            name = agent_name(self._spec, node)
            try:
                handle = ray.get_actor(name, namespace=NAMESPACE)
            except ValueError:  # it has ended: it sent all, or left what it could not send
                if self._connector is None or orders.is_closing:
                    raise
                handle = launch_node_agent(self._spec, node, None, self._connector)
            self._handles[node] = handle
        return handle.exchange.remote(orders)

    def _heard(self) -> dict[str, News | Exception]:
        """What those say that have answered by now, and who has had time enough."""
        found: dict[str, News | Exception] = {}
        done, now_s = _wait([asked.ref for asked in self._asked.values()], 0.0), time.monotonic()
        for node, asked in list(self._asked.items()):
            if asked.ref in done:
                found[node] = self._take(node)
            elif now_s - asked.since_s > ANSWER_TIMEOUT_S:
                self._forget(node)
                found[node] = TimeoutError(f"no answer for {ANSWER_TIMEOUT_S:.0f} s")
        return found

    def _take(self, node: str) -> News | RayError:
        ref = self._asked.pop(node).ref
        check_ray()
        try:
            news: News = ray.get(ref, timeout=LOOK_S)
        except RayError as error:
            self._forget(node)
            return error
        return news

    def _forget_stale(self) -> None:
        """Its process may have connected to Ray again: agents outlive that, and handles do not."""
        here = connection() if ray.is_initialized() else self._connection
        if here != self._connection:
            self._handles, self._asked, self._connection = {}, {}, here

    def _forget(self, node: str) -> None:
        self._handles.pop(node, None)
        self._asked.pop(node, None)

    def _gone(self, nodes: Collection[str]) -> set[str]:
        """Those of them that Ray says are gone."""
        return set(nodes) - self.alive_nodes() if nodes else set()

    def alive_nodes(self) -> set[str]:
        """All nodes that Ray says live."""
        return alive_nodes()

    def is_alive(self, node: str) -> bool:
        """See `Nodes.is_alive`."""
        return node in self.alive_nodes()

    def tell_lost(self, lost: Mapping[str, str]) -> None:
        """See `Nodes.tell_lost`."""
        if self._known_by is None:
            return
        try:
            run = KnownRun(self._spec.to_plain(), lost=dict(lost))
            with self._turn():
                check_ray()
                self._known_by.note_run.remote(self._spec.where, run)
        except Exception as error:  # what was lost is in the driver's log, and `fit` raises
            logger.debug("nobody can be told of %s: %s", lost, error)


def _wait(refs: Sequence[Any], timeout_s: float) -> set[Any]:
    """Those that are there; waits until all of them are, or the time is over."""
    if not refs:
        return set()
    check_ray()
    return set(ray.wait(list(refs), num_returns=len(refs), timeout=timeout_s)[0])


def finish_earlier(
    where: str, timeout_s: float, options: Mapping[str, Any] | None = None, home: str = ""
) -> None:
    """Wait until the agents of an earlier run of an experiment have sent what they have.

    Those that send it to another node than `home` end, and leave it to `send_left_behind`; but
    for a live run that has the same path there.

    Args:
        where: The experiment directory.
        timeout_s: Go on if nothing moves for so long.
        options: `SyncConfig.storage_options`, which may have gone with that run's driver.
        home: This node, if the directory is on its disk; "" if other nodes reach it.
    """
    asked = (options, home) if home else (options,)
    names = [
        found["name"]
        for found in ray.util.list_named_actors(all_namespaces=True)
        if found["namespace"] == NAMESPACE and str(found["name"]).startswith(names_of(where))
    ]
    for name in names:  # all send at once, whoever of them does not answer
        with suppress(ValueError, RayError):
            agent = ray.get_actor(name, namespace=NAMESPACE)  # its methods do not hold it
            agent.finish.remote(*asked)
    began_s = time.monotonic()
    for name in names:
        if _finish(where, name, timeout_s, asked, began_s):
            began_s = time.monotonic()  # it has sent all that time: the next one has its own


def _finish(where: str, name: str, timeout_s: float, asked: Sequence[Any], began_s: float) -> bool:
    """Whether it has sent all, or has ended."""
    node = node_of(name)
    moved_s, said_s, sent_bytes = began_s, 0.0, -1
    while True:
        try:
            news = _left(name, asked)
        except (RayError, TimeoutError) as error:
            patience_s = min(timeout_s, START_TIMEOUT_S)  # Ray may be starting it again
            if node in alive_nodes() and time.monotonic() - moved_s < patience_s:
                time.sleep(LOOK_S)
                continue
            logger.warning("%s: an agent of an earlier run does not answer: %s", where, error)
            return False
        if news is None:
            return True
        now_s = time.monotonic()
        if news.sent_bytes > sent_bytes:
            moved_s = now_s
        sent_bytes = news.sent_bytes  # less: it was started again
        if now_s - moved_s > timeout_s:
            logger.warning(
                "%s: %d checkpoints of an earlier run stay on node %s: %s",
                where, news.left_count, node, news.error or "nothing moves",
            )  # fmt: skip
            return False
        if now_s - said_s > SAY_S:
            logger.warning(
                "%s: waiting for %s of an earlier run, on node %s",
                where, checkpoints(news.left_count, news.left_bytes), node,
            )  # fmt: skip
            said_s = now_s
        time.sleep(LOOK_S)


def _left(name: str, asked: Sequence[Any]) -> News | None:
    """What an agent still has to send; None if nothing, or nothing of this experiment.

    Raises:
        RayError: It does not answer.
        TimeoutError: It sends to another node than this, and has not ended yet.
    """
    try:
        handle = ray.get_actor(name, namespace=NAMESPACE)
        news: News | None = ray.get(handle.finish.remote(*asked), timeout=ANSWER_TIMEOUT_S)
    except ValueError:  # it has ended: another restore has waited for it too
        return None
    except LeaseHeldError as error:
        logger.info("what is staged for another run stays: %s", error)
        return None
    if news is None:
        raise TimeoutError("it sends to another node, and does not end")
    if not news.left_count:
        handle.exchange.remote(Orders(is_closing=True))
        return None
    return news
