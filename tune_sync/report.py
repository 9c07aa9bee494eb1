"""What one report of a trial has come to, for whoever counts. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Report:
    """One process's part of a checkpoint, sealed.

    Attributes:
        blocked_s: Seconds from its start until it was sealed: so long training waited.
        size_bytes: Of all its files.
        is_staged: It is on the disk of its node; else it is at its destination.
    """

    blocked_s: float
    size_bytes: int
    is_staged: bool
