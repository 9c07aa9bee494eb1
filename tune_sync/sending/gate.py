"""How many transfers of a run are under way at a time, over all its nodes. Pure: no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

# So many checkpoints of a node travel at a time; each keeps several requests under way.
SENDERS_COUNT = 2


class Gate:
    """Lets checkpoints in, and counts their parts until they leave. For one thread at a time.

    Args:
        limit_count: So many parts at most are inside; None: no limit. A checkpoint with more of
            them goes in alone.
    """

    def __init__(self, limit_count: int | None = None) -> None:
        self._limit_count = limit_count
        self._inside: dict[str, Mapping[str, str]] = {}

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit at all."""
        return self._limit_count is not None

    def enter(self, checkpoint: str, parts: Mapping[str, str], others_count: int = 0) -> bool:
        """Let a checkpoint in if there is room; returns whether it is inside.

        Args:
            checkpoint: Its key.
            parts: Its attempts that are to be sent -> their nodes.
            others_count: Transfers that are under way and were not let in here.
        """
        if checkpoint not in self._inside and not self._has_room(parts, others_count):
            return False
        self._inside[checkpoint] = parts
        return True

    def leave(self, checkpoint: str) -> None:
        """It is not sent any more; a second time, nothing happens."""
        self._inside.pop(checkpoint, None)

    def inside(self) -> list[str]:
        """What is inside, in the order in which it came."""
        return list(self._inside)

    def _has_room(self, parts: Mapping[str, str], others_count: int) -> bool:
        if self._limit_count is None:
            return True
        nodes = Counter(node for inside in self._inside.values() for node in inside.values())
        used_count = nodes.total() + others_count
        if used_count and used_count + len(parts) > self._limit_count:
            return False
        mine = Counter(parts.values())  # a node sends no more at a time: the rest would only wait
        return all(not nodes[n] or nodes[n] + mine[n] <= SENDERS_COUNT for n in mine)
