"""What the driver needs of the agents of all nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from tune_sync.sending.orders import News, Orders


class NodeLostError(Exception):
    """A node is gone, and with it what was staged there."""


class Nodes(Protocol):
    """The agents of all nodes. See `agents.node_agents`."""

    def exchange(
        self, nodes: Collection[str], orders: Callable[[str], Orders]
    ) -> Mapping[str, News | Exception]:
        """Tell nodes' agents, all at once, and hear who has answered: at the latest after a second.

        An agent that has not answered yet is not asked again before it has had time to. What it
        says then comes with a later call.

        Args:
            nodes: Whom to ask.
            orders: Says what a node is told; called for those that are asked now.

        Returns:
            Node -> what it says; NodeLostError if it is gone; another error if its agent cannot
            answer. Not there: one that has not answered yet.
        """

    def close(self, nodes: Collection[str]) -> None:
        """Tell agents that the run is over. No error for those that do not answer."""

    def is_alive(self, node: str) -> bool:
        """Whether a node is there. Within milliseconds."""

    def tell_lost(self, lost: Mapping[str, str]) -> None:
        """Let others know which checkpoints were lost, and why. Returns at once."""
