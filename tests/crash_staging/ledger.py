"""What was promised of what a node has staged."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.crash.ledger import Contents, Ledger


@dataclass
class StagedLedger(Ledger):
    """See `Ledger`; `wholes` are what a checkpoint is once all its ranks have reported.

    Attributes:
        parts: What each rank reports of a checkpoint.
        reported: Checkpoint -> attempts whose reports have returned.
        accepted: Checkpoints whose reports have all returned, and of which the driver has heard.
        confirmed: Attempts that the node's agent has made durable there.
        removing: Attempts that the node's agent has begun to remove.
        replicated: Checkpoints of which another node has a copy.
        alone: Of these one report is all.
    """

    parts: dict[str, list[Contents]] = field(default_factory=dict)
    reported: dict[str, list[str]] = field(default_factory=dict)
    accepted: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    removing: set[str] = field(default_factory=set)
    replicated: set[str] = field(default_factory=set)
    alone: set[str] = field(default_factory=set)

    def survives(self, checkpoint: str, *, killed: bool) -> bool:
        """Whether it is to be sent whatever happened: with a power cut if it was confirmed."""
        if checkpoint not in self.accepted:
            return False
        return killed or set(self.reported[checkpoint]) <= self.confirmed
