"""When the checkpoints of which trial travel, if each has one turn a period. Pure: no clock."""

from __future__ import annotations

import math

import xxhash

_HASHES_COUNT = 1 << 64


class Turns:
    """Spreads the turns of many trials over the period: each has a moment of its own in it.

    The moment follows from the trial's name alone, so that it is the same in every run and on every
    machine. For one thread at a time.

    Args:
        period_s: Seconds between two turns of one trial.
        start_s: When the first period begins.
    """

    def __init__(self, period_s: float, start_s: float) -> None:
        self._period_s = period_s
        self._start_s = start_s
        self._waiting: dict[str, int] = {}

    def phase_s(self, trial: str) -> float:
        """How long after the beginning of each period the trial's turn is."""
        return self._period_s * int(xxhash.xxh3_64_intdigest(trial.encode())) / _HASHES_COUNT

    def wait(self, trial: str, now_s: float) -> None:
        """The trial has something to send from now on; a second time, nothing happens."""
        self._waiting.setdefault(trial, self._turns_count(trial, now_s))

    def is_due(self, trial: str, now_s: float) -> bool:
        """Whether the trial's turn has come since it waits."""
        since = self._waiting.get(trial)
        return since is not None and self._turns_count(trial, now_s) > since

    def took(self, trial: str) -> None:
        """The trial has nothing to send any more."""
        self._waiting.pop(trial, None)

    def _turns_count(self, trial: str, now_s: float) -> int:
        """How many turns it has had by now, used or not: with an endless period, none ever."""
        if math.isinf(self._period_s):
            return 0
        return math.floor((now_s - self._start_s - self.phase_s(trial)) / self._period_s)
