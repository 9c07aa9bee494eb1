"""What a node is expected to have, and has not: it may have sent it, and ended, before.

An agent whose driver is silent sends all, removes it, and ends. If that driver was only stopped, as
by Ctrl-Z, it goes on, and asks the next agent. What was sent is sealed at the destination.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

from tune_sync import layout
from tune_sync.errors import DamagedError
from tune_sync.homes.home import Home
from tune_sync.manifest import seal_from_json
from tune_sync.sending.orders import News
from tune_sync.worker import Worker

logger = logging.getLogger("ray.tune_sync")

# An answer waits so long for a destination; a slower one is told of with a later answer.
WAIT_S = 0.3
SEAL, OVER = "seal.json", "over.json"


class Sought:
    """Methods may be called from any thread.

    Args:
        open_home: Makes the destination's home.
    """

    def __init__(self, open_home: Callable[[], Home]) -> None:
        self._open_home = open_home
        self._changed = threading.Condition()
        self._known: dict[str, str] = {}  # attempt -> its id there; "" if it is not there
        self._is_looking = False
        self._worker = Worker("tune_sync-seek")

    def answer(self, news: News, may_have: Callable[[str], bool]) -> News:
        """What a node says, with what it has sent before, and only that missing that surely is.

        Args:
            news: What it says by what it has found here.
            may_have: Whether it may have an attempt all the same.
        """
        gone = [attempt for attempt in news.missing if not may_have(attempt)]
        there = self.seek(gone)
        sent = {attempt: stored_as for attempt, stored_as in there.items() if stored_as}
        missing = [attempt for attempt in gone if there.get(attempt) == ""]
        return replace(news, missing=missing, stored={**news.stored, **sent})

    def seek(self, attempts: Collection[str]) -> dict[str, str]:
        """Attempt -> its id at the destination, or "" if it is not there; only what is known.

        What is not known is looked for. While the destination does not answer, nothing is.
        """
        wanted = set(attempts)
        if not wanted:
            return {}
        with self._changed:
            if not self._is_looking and not wanted <= self._known.keys():
                self._is_looking = True
                self._worker.add(lambda: self._look(wanted))
            self._changed.wait_for(lambda: not self._is_looking, WAIT_S)
            return {attempt: self._known[attempt] for attempt in wanted & self._known.keys()}

    def close(self, timeout_s: float) -> None:
        """End the thread."""
        self._worker.close(timeout_s)

    def _look(self, wanted: set[str]) -> None:
        found = dict[str, str]()
        try:
            there = sealed_from(self._open_home())
            found = {attempt: there.get(attempt, "") for attempt in wanted}
        except Exception as error:  # it is looked for again when it is expected the next time
            logger.debug("cannot look for %s at the destination: %s", sorted(wanted), error)
        finally:
            with self._changed:
                self._known |= found
                self._is_looking = False
                self._changed.notify_all()


def sealed_from(home: Home) -> dict[str, str]:
    """What is sealed there and not published: the attempt on its node -> its id there."""
    found, todo = dict[str, str](), [layout.STAGING_DIR]
    while todo:
        for entry in home.list(todo.pop(), False):
            if layout.is_checkpoint_name(entry.key.rpartition("/")[2]):
                for attempt in home.list(entry.key, False):
                    found |= _sealed(home, attempt.key)
            elif entry.is_dir:
                todo.append(entry.key)
    return found


def _sealed(home: Home, attempt: str) -> dict[str, str]:
    marks = {entry.key.rpartition("/")[2]: entry for entry in home.list(attempt, False)}
    if SEAL in marks and OVER not in marks:
        with suppress(DamagedError, FileNotFoundError):  # it has just been published, or deleted
            entry = marks[SEAL]
            seal = seal_from_json(bytes(home.read(entry.key, 0, entry.size_bytes)), entry.key)
            return {seal.staged_as: seal.attempt} if seal.staged_as else {}
    return {}
