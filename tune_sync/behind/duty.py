"""Whether a node's agent is still of use, from the lease at the destination. Pure.

| the lease | what the agent does |
|---|---|
| cannot be read | waits: it may be replaced just now, or be half of one after a crash of its disk |
| has gone | ends, and keeps what is not stored: someone has removed it, or the experiment |
| is another run's | ends: that run goes on without what is here, which the next restore looks at |
| is held while the directory is tidied | waits |
| is held by who tidied and has died | ends: nobody may write; what is here is left, as for a run |
| is beating | waits for the driver |
| is silent, or was left | sends all, then ends; what does not get on for a day is left |

A driver that ends well says so itself: then nothing is of use any more, and no lease is asked.
"""

from __future__ import annotations

import enum

from tune_sync.errors import HomeLostError
from tune_sync.homes.bucket.lease import BUCKET_LEASE_TTL_S
from tune_sync.homes.lease import LEASE_TTL_S, TIDYING, holder_from_json, in_use

# Longer than any lease is believed in without a heartbeat, also where nodes' clocks differ.
SILENT_S = max(LEASE_TTL_S, BUCKET_LEASE_TTL_S) + 30

# An agent whose driver is dead ends once nothing has got on for so long: a restore on its node
# sends what it leaves. A shorter time would end it in an outage that somebody repairs.
STUCK_S = 24 * 3600.0


class Step(enum.Enum):
    """What an agent does next."""

    STAY = "stay"
    SEND_ALL = "send all"
    END = "end, and remove what is of no use"
    LEAVE = "end, and leave what is staged"


def next_step(lease: bytes | None, owner: str, now_s: float) -> Step:
    """What the agent of the run `owner` does, whose driver it has not heard for a while.

    Args:
        lease: What its file holds; None if there is none.
        owner: The agent's run.
        now_s: Seconds since the epoch.
    """
    if lease is None:
        return Step.END
    holder = holder_from_json(lease)
    if holder is None:  # says nothing of who has it: not a word to remove anything by
        return Step.STAY
    is_alive = not holder.is_surely_dead and holder.age_s(now_s) < SILENT_S
    if holder.owner.startswith(TIDYING):  # if it has died, it gives the lease back to nobody
        return Step.STAY if is_alive else Step.LEAVE
    if holder.owner != owner:
        return Step.LEAVE
    return Step.STAY if is_alive else Step.SEND_ALL


def check_dead(where: str, lease: bytes | None, now_s: float) -> None:
    """Whether no live run has a directory, for who restores a copy of it elsewhere.

    Args:
        where: The directory.
        lease: What its file holds; None if there is none.
        now_s: Seconds since the epoch.

    Raises:
        LeaseHeldError: A live run has it.
        HomeLostError: The lease cannot be read just now; ask again.
    """
    holder = holder_from_json(lease or b"")
    if holder is None:
        if lease is not None:
            raise HomeLostError(f"the lease of {where} is being replaced just now; ask again")
        return
    if not holder.is_surely_dead and holder.age_s(now_s) < LEASE_TTL_S:
        raise in_use(where, holder, now_s, LEASE_TTL_S)
