"""Whoever reports a checkpoint waits until another node has it too, or it is at its destination."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.errors import (
    DamagedError,
    FixCallError,
    NotWholeError,
    StoreFullError,
    SyncTimeoutError,
    TuneSyncError,
)
from tune_sync.manifest import Seal

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# How often it is tried again, and looked whether the checkpoint is stored meanwhile.
LOOK_S = 0.5
# How often a process says that it has no replicas: each report would say the same.
SAY_S = 600.0
# Another try would not end otherwise.
_LASTING = (DamagedError, FixCallError, NotWholeError)


@dataclass(frozen=True, slots=True)
class Replica:
    """Where a second copy is.

    Attributes:
        node: The Ray node.
        sends: It sends the checkpoint on, and not the node that wrote it.
    """

    node: str
    sends: bool = False


class NoPeerError(Exception):
    """There is no other node that could have a copy."""


class Replicator(Protocol):
    """Copies attempts to another node. See `agents.replicator`."""

    def copy(self, copies: StagedCopies, checkpoint: str, seal: Seal) -> Replica:
        """Copy a sealed attempt; the copy is sealed there on return.

        Raises:
            NoPeerError: There is no other node.
            StoreFullError: The other node has no room, neither in memory nor on its disk.
            TuneSyncError, OSError: It did not work now.
        """


class Replicating:
    """One process's. Methods may be called from any thread.

    Args:
        replicator: Copies to another node.
        is_stored: Whether an attempt is at the destination; has it sent there.
        may_wait: What is not replicated is sent at once: its report can wait for that.
        fails: A report that has neither fails, where it did not just lack room.
        timeout_s: How long a report waits.
        tell: Takes which report has no replica, and why; "" once one has been taken since.
        clock: Monotonic seconds.
        sleep: Waits for seconds.
    """

    def __init__(
        self, replicator: Replicator, is_stored: Callable[[str], bool], *,
        may_wait: bool = True, fails: bool = True, timeout_s: float = 1800.0,
        tell: Callable[[str], object] = lambda why: None,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._replicator = replicator
        self._is_stored = is_stored
        self._may_wait = may_wait
        self._fails = fails
        self._timeout_s = timeout_s
        self._tell, self._told = tell, ""
        self._clock = clock
        self._sleep = sleep
        self._said_s = float("-inf")

    def replicate(self, copies: StagedCopies, checkpoint: str, seal: Seal) -> Replica | None:
        """Return once another node has a copy, or None once that is not needed any more.

        Where no node has room for one, or there is no other node, the checkpoint is stored at its
        destination on return; or, if that takes too long, a warning said that it is not.

        Raises:
            SyncTimeoutError: No other node, nor the destination, took it for `timeout_s`.
            DamagedError: What is staged here is not what was reported.
        """
        end_s = self._clock() + self._timeout_s
        while True:
            try:
                replica = self._replicator.copy(copies, checkpoint, seal)
                self._tell_once("")
                return replica
            except _LASTING:
                raise
            except (NoPeerError, TuneSyncError, OSError) as error:
                why = error
            self._tell_once(f"{checkpoint}: {why}")
            has_no_room = isinstance(why, (NoPeerError, StoreFullError))
            if self._is_stored_now(seal.attempt):
                return None
            self._say(checkpoint, why)
            if has_no_room and not self._may_wait:
                return None
            if self._clock() >= end_s:
                self._give_up(checkpoint, why, fails=self._fails and not has_no_room)
                return None
            self._sleep(LOOK_S)

    def _is_stored_now(self, attempt: str) -> bool:
        if not self._may_wait:
            return False
        try:
            return self._is_stored(attempt)
        except Exception as error:  # this node's agent may be starting just now
            logger.debug("the agent of this node does not answer: %s", error)
            return False

    def _tell_once(self, why: str) -> None:
        if why != self._told:
            self._told = why
            self._tell(why)

    def _say(self, checkpoint: str, why: Exception) -> None:
        now_s = self._clock()
        if now_s - self._said_s >= SAY_S:
            self._said_s = now_s
            instead = "its report waits for its destination" if self._may_wait else "it is staged"
            logger.warning("%s is not replicated: %s; %s", checkpoint, why, instead)

    def _give_up(self, checkpoint: str, why: Exception, *, fails: bool) -> None:
        problem = (
            f"{checkpoint}: neither another node nor its destination has taken it within "
            f"{self._timeout_s:.0f} s (sync_timeout): {why}"
        )
        if fails:
            raise SyncTimeoutError(f"{problem}; look at that node and at the network between")
        logger.warning("%s; it is on its own node only, and is sent on from there", problem)
