"""How long a report waits until it is stored, and how often in a row that may be in vain."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from tune_sync.errors import StoreUnreachableError

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

LOOK_S = 0.3
NO_ANSWER = "there was no answer yet"


class Sender(Protocol):
    """What sends on what is staged. See `staging_home.StagingAgent`."""

    def is_settled(self, attempt: str) -> bool:
        """Whether an attempt is stored, or the destination does not answer."""

    def why_not_stored(self, attempt: str) -> str:
        """Why an attempt is not stored yet, or never will be; "" if it is.

        NO_ANSWER if nothing was tried in vain since this was asked first; that is hurried.
        """


class Tries:
    """Whether any try to send failed that began after somebody asked. For one thread at a time."""

    def __init__(self) -> None:
        self._count = self._failed = 0
        self._asked: dict[str, int] = {}

    def begin(self) -> int:
        """A try begins; returns its number."""
        self._count += 1
        return self._count

    def failed(self, number: int) -> None:
        """A try has failed."""
        self._failed = max(self._failed, number)

    def failed_for(self, attempt: str) -> bool:
        """Whether one has failed that began after this was asked of an attempt first."""
        return self._failed > self._asked.setdefault(attempt, self._count)

    @property
    def is_awaited(self) -> bool:
        """Whether somebody has asked since the last one began that has failed."""
        return any(count >= self._failed for count in self._asked.values())

    def forget(self, attempt: str) -> None:
        """Nobody asks of it any more."""
        self._asked.pop(attempt, None)


class Settling:
    """Waits for the reports of one process. Methods may be called from any thread.

    Args:
        sender: Sends what is staged.
        timeout_s: The longest wait for one report.
        most_failures: So many in a row that are not stored are one too many; 0: no limit.
        clock: Monotonic seconds.
        sleep: Waits for seconds.
    """

    def __init__(
        self, sender: Sender, timeout_s: float, most_failures: int = 0, *,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._sender = sender
        self._timeout_s = timeout_s
        self._most_failures = most_failures
        self._clock = clock
        self._sleep = sleep
        self._failed_count = 0

    def wait(self, checkpoint: str, attempt: str) -> None:
        """Return once an attempt is stored, or cannot be just now: it is sent later then.

        Raises:
            StoreUnreachableError: It is one too many that is not stored; says why.
        """
        # What counts as a failure was tried. Else training goes on as soon as an outage is known.
        is_settled = self._is_tried if self._most_failures else self._sender.is_settled
        end_s = self._clock() + self._timeout_s
        while not is_settled(attempt):
            if self._clock() > end_s:
                logger.warning("%s is staged here; it is sent once the destination answers",
                               checkpoint)  # fmt: skip
                break
            self._sleep(LOOK_S)
        if self._most_failures:
            self._count(checkpoint, self._sender.why_not_stored(attempt))

    def _is_tried(self, attempt: str) -> bool:
        return self._sender.why_not_stored(attempt) != NO_ANSWER

    def _count(self, checkpoint: str, why: str) -> None:
        self._failed_count = self._failed_count + 1 if why else 0
        if self._failed_count < self._most_failures:
            return
        raise StoreUnreachableError(
            f"{checkpoint} is not stored, nor was any of this trial's last {self._failed_count} "
            f"reports (max_consecutive_failures): {why}; see to it that the destination answers, "
            "then restore the run with resume_errored=True"
        )
