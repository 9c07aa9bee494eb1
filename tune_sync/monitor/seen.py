"""What `tune_sync.status` answers. Plain data, and how it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_FAILED_SHOWN_COUNT = 5


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """How far one node is with what its trials have staged there.

    A checkpoint of several ranks counts once for each of them.

    Attributes:
        node: The Ray node's id.
        host: Its address.
        staged_count: Checkpoints on its disk, or in its memory, that are not stored yet.
        staged_bytes: Their size.
        stored_count: Checkpoints that it has brought to the destination, since its agent started.
        stored_bytes: Their size.
        failed_count: Staged checkpoints that can never be stored.
        oldest_unstored_s: For how long the oldest of the staged ones has been there; 0 if there
            is none.
        error: Why the last try to send failed, or why the node says nothing; "" if all is well.
        replicas_count: Checkpoints that it has for the case that another node is lost, which sends
            them.
        replicas_bytes: Their size.
        transports: How replicas have come to it: "rdma", "mooncake", "tcp" or
            "object_store".
        unreplicated: The report of this node that no other node has taken a replica of, and why;
            "" once one has been taken since.
    """

    node: str
    host: str = ""
    staged_count: int = 0
    staged_bytes: int = 0
    stored_count: int = 0
    stored_bytes: int = 0
    failed_count: int = 0
    oldest_unstored_s: float = 0.0
    error: str = ""
    replicas_count: int = 0
    replicas_bytes: int = 0
    transports: tuple[str, ...] = ()
    unreplicated: str = ""

    def __str__(self) -> str:
        oldest = f", the oldest for {self.oldest_unstored_s:.0f} s" if self.staged_count else ""
        by = f", came by {' and '.join(self.transports)}" if self.transports else ""
        replicas = f", {self.replicas_count} replicas ({_mb(self.replicas_bytes)}{by})"
        return (
            f"node {self.node[:8]}{f' ({self.host})' if self.host else ''}: "
            f"{self.staged_count} staged ({_mb(self.staged_bytes)}{oldest}), "
            f"{self.stored_count} sent ({_mb(self.stored_bytes)}), {self.failed_count} failed"
            f"{replicas if self.replicas_count or by else ''}"
            f"{f'; {self.error}' if self.error else ''}"
            f"{f'; no replica of {self.unreplicated}' if self.unreplicated else ''}"
        )


@dataclass(frozen=True, slots=True)
class Status:
    """How far a run is. `str` of it is a few lines for people.

    Attributes:
        where: The experiment's path or URL.
        is_running: Whether its driver is alive, as far as the lease at the destination tells: that
            of a driver which died on another machine runs out after 30 s, in a bucket after 90 s.
        driver: Who holds the lease, in words; "" if nobody does.
        stored_count: Checkpoints at the destination; None if that cannot be read now.
        newest_stored_s: Seconds since the last of them was stored; None if there is none.
        nodes: Where anything is staged, or was; empty without write-behind, or without a cluster.
        failed: Checkpoints that will never be stored, and why, as far as the driver has told.
        error: Why the destination cannot be read now; "" if it can.
    """

    where: str
    is_running: bool = False
    driver: str = ""
    stored_count: int | None = None
    newest_stored_s: float | None = None
    nodes: tuple[NodeStatus, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    error: str = ""

    @property
    def staged_count(self) -> int:
        """Checkpoints that nodes have staged and that are not stored yet."""
        return sum(node.staged_count for node in self.nodes)

    @property
    def staged_bytes(self) -> int:
        """Their size."""
        return sum(node.staged_bytes for node in self.nodes)

    @property
    def failed_count(self) -> int:
        """Checkpoints that can never be stored, of which nodes or the driver tell."""
        return max(len(self.failed), sum(node.failed_count for node in self.nodes))

    @property
    def oldest_unstored_s(self) -> float:
        """For how long the oldest of the staged ones has been there; 0 if there is none."""
        return max((node.oldest_unstored_s for node in self.nodes), default=0.0)

    def __str__(self) -> str:
        return "\n".join([f"{self.where}: {self._life()}", *map("  {}".format, self._lines())])

    def _life(self) -> str:
        if self.is_running:
            return f"running, {self.driver}"
        if self.driver:
            return f"its driver is gone, {self.driver}; a restore publishes what it had not"
        return "unknown whether it runs" if self.stored_count is None else "not running"

    def _lines(self) -> list[str]:
        lines = [self._stored()]
        if self.nodes:
            oldest = f", the oldest for {self.oldest_unstored_s:.0f} s" if self.staged_count else ""
            lines.append(f"staged: {self.staged_count} ({_mb(self.staged_bytes)}{oldest})")
        if self.failed_count:
            shown = list(self.failed.items())[:_FAILED_SHOWN_COUNT]
            lines.append(f"failed: {self.failed_count}")
            lines += [f"  {checkpoint}: {why}" for checkpoint, why in shown]
        return [*lines, *map(str, self.nodes)]

    def _stored(self) -> str:
        if self.stored_count is None:
            return f"stored: unknown, the destination cannot be read: {self.error}"
        newest_s = self.newest_stored_s
        newest = f", the newest {newest_s:.0f} s ago" if newest_s is not None else ""
        return f"stored: {self.stored_count} checkpoints{newest}"


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"
