"""Says how far the sending of a run is: in the log, and to whoever asks its agents."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tune_sync.behind.nodes import Nodes
from tune_sync.worker import is_of_exit

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# While training goes on it is said so often, and so often to whoever waits for the end.
SAY_MEANWHILE_S = 30.0
SAY_S = 5.0
# What fails is tried again twice a second, or more often, and said no more often than this.
SAY_FAILED_S = 30.0
# So many turns in a row that fail tell that the next one does.
LASTING_COUNT = 10

# How far it is, and whether that is worth telling.
Progress = Callable[[], tuple[str, bool]]


class Once:
    """Warns of each error once, however often it comes. May be called from any thread."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, error: Exception) -> None:
        """Warn of it, if that is the first time."""
        said = str(error)
        if said not in self._said:
            self._said.add(said)
            logger.warning("%s", said)


class Faults:
    """Those of a thread that goes on after each; none is its caller's to mend.

    Args:
        where: The experiment, for messages.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._said: set[str] = set()
        self._in_a_row = 0
        self.error: Exception | None = None

    def add(self, error: Exception) -> None:
        """A turn failed. Each fault is told once."""
        self.error, self._in_a_row = error, self._in_a_row + 1
        if repr(error) not in self._said:
            self._said.add(repr(error))
            logger.error(
                "%s: nothing is sent behind the training now: %r; this is a fault of tune_sync: "
                "please report it with these lines", self._where, error, exc_info=error,
            )  # fmt: skip

    def clear(self) -> None:
        """A turn came to its end."""
        self.error, self._in_a_row = None, 0

    @property
    def are_lasting(self) -> bool:
        """Whether it is of no use to wait."""
        return self._in_a_row >= LASTING_COUNT


class Telling:
    """One run's.

    Args:
        where: The experiment, for messages.
        nodes: Hears what was lost.
        say_every_s: Seconds between two lines while training goes on.
    """

    def __init__(self, where: str, nodes: Nodes, say_every_s: float = SAY_MEANWHILE_S) -> None:
        self._where = where
        self._nodes = nodes
        self._say_every_s = say_every_s
        self._said_s = time.monotonic()
        self._failed_s = float("-inf")
        self._told: dict[str, str] = {}

    def meanwhile(self, progress: Progress, lost: Callable[[], dict[str, str]]) -> None:
        """Say it if there is anything to say; tell what was lost. Called again and again."""
        self._say(self._say_every_s, progress, always=False)
        found = lost()
        if found != self._told:
            self._nodes.tell_lost(found)
            self._told = found

    def at_the_end(self, progress: Progress) -> None:
        """Say it to whoever waits. Called again and again."""
        self._say(SAY_S, progress, always=True)

    def failed(self, error: Exception) -> None:
        """Say that nothing can be written now. Called with each try."""
        if is_of_exit(error):  # it does not go on trying; a restore publishes what is staged
            logger.debug("%s: writes no more: %s", self._where, error)
            return
        if time.monotonic() - self._failed_s >= SAY_FAILED_S:
            self._failed_s = time.monotonic()
            logger.warning(
                "%s: cannot write to the destination now, goes on trying: %s", self._where, error
            )

    def _say(self, every_s: float, progress: Progress, *, always: bool) -> None:
        if time.monotonic() - self._said_s < every_s:
            return
        words, is_worth_telling = progress()
        if always or is_worth_telling:
            self._said_s = time.monotonic()
            logger.info("%s: %s", self._where, words)
