"""Which node others read a stored checkpoint from. Pure; one node's agent knows it for a run."""

from __future__ import annotations

import threading

# Readers come together; who comes much later reads from the store again.
KNOWN_COUNT = 64


class Holders:
    """Methods may be called from any thread.

    A node is only told of those that came before it: so no two ever wait for each other.
    """

    def __init__(self) -> None:
        # Of each checkpoint: nodes in the order in which they came, and whether each may have it.
        self._nodes: dict[str, dict[str, bool]] = {}
        self._nodes_lock = threading.Lock()

    def join(self, checkpoint: str, node: str, gone: str = "") -> str:
        """Who has a checkpoint, or is about to have it, so that `node` need not ask the store.

        Args:
            checkpoint: Its key.
            node: Who wants it.
            gone: Whom it was told before, and who has it no more, or does not answer.

        Returns:
            Another node; "" if there is none: this one asks the store.
        """
        with self._nodes_lock:
            nodes = self._nodes.pop(checkpoint, {})
            self._nodes[checkpoint] = nodes
            while len(self._nodes) > KNOWN_COUNT:
                del self._nodes[next(iter(self._nodes))]
            nodes[node] = True
            if gone in nodes:
                nodes[gone] = False
            earlier = list(nodes)[: list(nodes).index(node)]
            return next((other for other in earlier if nodes[other]), "")
