"""Whether a node's agent is still of use, from the lease at the destination. Pure.

| the lease | what the agent does |
|---|---|
| has gone | ends: the run has ended and all is stored, or the experiment was removed |
| is another run's | ends: that run goes on without what is here, which the next restore looks at |
| is held while the directory is tidied | waits |
| is beating | waits for the driver |
| is silent, or was left | sends all, then ends |
"""

from __future__ import annotations

import enum

from tune_sync.homes.bucket.lease import BUCKET_LEASE_TTL_S
from tune_sync.homes.lease import LEASE_TTL_S, TIDYING, Holder

# Longer than any lease is believed in without a heartbeat, also where nodes' clocks differ.
SILENT_S = max(LEASE_TTL_S, BUCKET_LEASE_TTL_S) + 30


class Step(enum.Enum):
    """What an agent does next."""

    STAY = "stay"
    SEND_ALL = "send all"
    END = "end"
    LEAVE = "end, and leave what is staged"


def next_step(holder: Holder | None, owner: str, now_s: float) -> Step:
    """What the agent of the run `owner` does, whose driver it has not heard for a while.

    Args:
        holder: Who has the lease.
        owner: The agent's run.
        now_s: Seconds since the epoch.
    """
    if holder is None:
        return Step.END
    if holder.owner.startswith(TIDYING):
        return Step.STAY
    if holder.owner != owner:
        return Step.LEAVE
    is_alive = not holder.is_surely_dead and holder.age_s(now_s) < SILENT_S
    return Step.STAY if is_alive else Step.SEND_ALL
