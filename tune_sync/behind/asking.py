"""Asks the nodes for what a run waits for, and takes up what they say."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

from tune_sync.behind.nodes import NodeLostError, Nodes
from tune_sync.sending.backlog import Backlog
from tune_sync.sending.orders import News, Orders

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


class Asking:
    """One run's.

    Args:
        nodes: The agents.
        backlog: Takes it up.
        tables: Held while that is used.
    """

    def __init__(self, nodes: Nodes, backlog: Backlog, tables: threading.Condition) -> None:
        self._nodes = nodes
        self._backlog = backlog
        self._tables = tables

    def ask(self, nodes: Collection[str]) -> None:
        """What was heard is taken up, whoever else does not answer."""
        try:
            answers = self._nodes.exchange(nodes, self._orders)
        except Exception as error:  # Ray itself does not answer
            logger.debug("the nodes cannot be asked: %s", error)
            return
        for node, answer in answers.items():
            self._hear(node, answer)

    def lose_node(self, node: str, why: str) -> None:
        """See `Backlog.lose_node`."""
        with self._tables:
            self._backlog.lose_node(node, why)

    def _orders(self, node: str) -> Orders:
        with self._tables:
            return self._backlog.orders(node)

    def _hear(self, node: str, answer: News | Exception) -> None:
        if isinstance(answer, NodeLostError):
            self.lose_node(node, str(answer))
        elif isinstance(answer, Exception):
            logger.debug("the agent of node %s does not answer: %s", node, answer)
        else:
            with self._tables:
                complaint = self._backlog.hear(node, answer)
            if complaint:
                logger.warning("node %s cannot send now, and goes on trying: %s", node, complaint)
