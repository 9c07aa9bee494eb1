"""Files that somebody was told are not stored, here or by earlier processes of a node."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# Before what earlier processes have told is asked for again, if nobody answered.
ASK_AGAIN_S = 60.0


class ToldFiles:
    """Methods may be called from any thread.

    Args:
        tell: Called with the key of a file that is not stored, and why; with None for why, once it
            is stored after all.
        ask: Returns the keys that `tell` was called with, here and in earlier processes.
    """

    def __init__(
        self, tell: Callable[[str, str | None], None], ask: Callable[[], Collection[str]]
    ) -> None:
        self._tell, self._ask = tell, ask
        self._told, self._ask_again_s = set[str](), float("-inf")
        self._lock = threading.Lock()

    def begin_anew(self) -> None:
        """Other processes may have told since what they could not store."""
        with self._lock:
            self._ask_again_s = float("-inf")

    def failed(self, key: str, why: str) -> None:
        """A file is not stored."""
        self._told.add(key)
        self._tell(key, why)

    def stored(self, key: str) -> None:
        """A file is: whoever was told that it is not is told so."""
        with self._lock:
            if time.monotonic() >= self._ask_again_s:
                try:
                    self._told.update(self._ask())
                    self._ask_again_s = float("inf")
                except Exception as error:  # this file is stored, whatever can be asked
                    self._ask_again_s = time.monotonic() + ASK_AGAIN_S
                    logger.debug("what is not stored cannot be asked for: %s", error)
            is_told = key in self._told
            self._told.discard(key)
        if is_told:
            self._tell(key, None)
