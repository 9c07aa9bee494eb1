"""What was reported with checkpoints that are sent behind: a trial may have to go on from one."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tune_sync import layout


class ReportedMetrics:
    """Of each trial, those of its newest published checkpoint, and of later ones.

    The control loop asks for them where Ray has forgotten that checkpoint, and must not ask the
    destination. For one thread at a time.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[str, dict[str, Any] | None]] = defaultdict(dict)  # by trial

    def note(self, checkpoint: str, metrics: dict[str, Any] | None) -> None:
        """A checkpoint was accepted."""
        self._known[layout.parent(checkpoint)][checkpoint] = metrics

    def published(self, checkpoint: str) -> None:
        """Nobody goes on from older ones any more."""
        trial, age = layout.parent(checkpoint), layout.by_age(checkpoint)
        known = self._known[trial]
        self._known[trial] = {c: m for c, m in known.items() if layout.by_age(c) >= age}

    def of(self, checkpoint: str) -> dict[str, Any] | None:
        """What was reported with a checkpoint; None: not known any more, or nothing was."""
        return self._known[layout.parent(checkpoint)].get(checkpoint)
