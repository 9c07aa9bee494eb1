"""Which node others read a stored checkpoint from. Pure; one node's agent knows it for a run."""

from __future__ import annotations

import threading

# Readers come together; who comes much later reads from the store again.
KNOWN_COUNT = 64


class Holders:
    """Methods may be called from any thread."""

    def __init__(self) -> None:
        self._nodes: dict[str, str] = {}
        self._nodes_lock = threading.Lock()

    def join(self, checkpoint: str, node: str, gone: str = "") -> str:
        """Who has a checkpoint, or is about to have it, so that `node` need not ask the store.

        Args:
            checkpoint: Its key.
            node: Who wants it.
            gone: Whom it was told before, and who has it no more, or does not answer.

        Returns:
            Another node; "" if there is none: from now on it is this one.
        """
        with self._nodes_lock:
            holder = self._nodes.get(checkpoint, "")
            if holder not in ("", node, gone):
                return holder
            self._nodes.pop(checkpoint, None)
            self._nodes[checkpoint] = node
            while len(self._nodes) > KNOWN_COUNT:
                del self._nodes[next(iter(self._nodes))]
            return ""
