"""What the driver and the agent of a node tell each other of staged attempts. Plain data.

Each message says all that holds, and not what has changed: none of them can be lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

# Stands between an attempt's id and the node where it is staged, in what a worker reports.
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
        is_closing: The run ends, and whatever is left is of no use.
    """

    expected: Collection[str] = ()
    wanted: Sequence[str] = ()
    published: Collection[str] = ()
    dropped: Collection[str] = ()
    held_back: Collection[str] = ()
    is_closing: bool = False


@dataclass(frozen=True, slots=True)
class News:
    """What a node's agent says.

    Attributes:
        held: All attempts that it has.
        stored: Attempt -> its id at the destination.
        failed: Attempt -> why it can never be sent.
        missing: Expected, and not there.
        left_count: Attempts that are to be sent.
        left_bytes: Their size.
        sent_bytes: How much was sent so far; it grows while anything moves.
        error: Why the last try failed; "" if it did not.
    """

    held: Sequence[str] = ()
    stored: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    missing: Sequence[str] = ()
    left_count: int = 0
    left_bytes: int = 0
    sent_bytes: int = 0
    error: str = ""
