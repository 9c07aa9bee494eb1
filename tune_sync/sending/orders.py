"""What the driver and the agent of a node tell each other of staged attempts. Plain data.

Each message says all that holds, and not what has changed: none of them can be lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

# Stands between an attempt's id, the node that sends it, and the node that has a replica, if there
# is one, in what a worker reports.
AT = "@"


@dataclass(frozen=True, slots=True)
class Orders:
    """What the driver says. All are ids of attempts on the node.

    Attributes:
        expected: Not known to be stored: the node says if it does not have them.
        wanted: To be sent first, in this order.
        published: Their checkpoints are published.
        dropped: Not to be sent: their checkpoints were deleted.
        held_back: Not to be sent now, and not to be removed either.
        is_closing: The run ends, and whatever is left is of no use; but where a restore says so,
            for a driver that has died: what was reported since stays.
        parts: Attempt -> all parts of its checkpoint, where the node may not know them yet. See
            `manifest.Seal.parts`.
    """

    expected: Collection[str] = ()
    wanted: Sequence[str] = ()
    published: Collection[str] = ()
    dropped: Collection[str] = ()
    held_back: Collection[str] = ()
    is_closing: bool = False
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class News:
    """What a node's agent says.

    Attributes:
        held: All attempts that it has.
        stored: Attempt -> its id at the destination.
        failed: Attempt -> why it can never be sent.
        missing: Expected, and not there.
        left_count: Attempts that are to be sent, or are being sent.
        left_bytes: Their size.
        left_s: For how long the oldest of them has been staged.
        stored_count: Attempts that this agent has sent, since it was started.
        stored_bytes: Their size.
        sent_bytes: Grows while sending gets on, and not by what only fails again; no exact count.
        error: Why the last try failed; "" if it did not.
        sending: Attempts that are under way.
        is_full: Writers wait for room.
        noted: Attempts of which all parts are known here.
        replicas_count: Attempts that are here for the case that another node is lost.
        replicas_bytes: Their size.
        transports: How replicas have come here, since this agent was started: "tcp", say.
        unreplicated: Which report of this node has no replica now, and why; "" if all went well
            since.
    """

    held: Sequence[str] = ()
    stored: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    missing: Sequence[str] = ()
    left_count: int = 0
    left_bytes: int = 0
    left_s: float = 0.0
    stored_count: int = 0
    stored_bytes: int = 0
    sent_bytes: int = 0
    error: str = ""
    sending: Sequence[str] = ()
    is_full: bool = False
    noted: Sequence[str] = ()
    replicas_count: int = 0
    replicas_bytes: int = 0
    transports: Sequence[str] = ()
    unreplicated: str = ""


def are_on_nodes(attempts: Collection[str]) -> bool:
    """Whether a worker reported these attempts as staged on its node, and not at home."""
    return any(AT in attempt for attempt in attempts)
