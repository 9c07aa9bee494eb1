"""Keeps what the library has opened, and closes it in order."""

from __future__ import annotations

import contextlib
import threading
from typing import Any


class Handles:
    """Objects of the library that are open, in the order in which they were made.

    When Python's garbage collector finds such objects in a cycle, it takes parents from children,
    and the library then frees what is in use: the process ends. So they are held here until they
    are closed, and nothing that can be part of a cycle is the last to hold one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, Any] = {}

    def keep(self, part: Any) -> Any:
        """Hold `part` until it is closed; returns it."""
        with self._lock:
            self._open[id(part)] = part
        return part

    def close(self, part: Any) -> None:
        """Close `part`. May be called twice."""
        with self._lock:
            if id(part) not in self._open:
                return
        part.close()
        with self._lock:
            self._open.pop(id(part), None)

    def close_all(self) -> None:
        """Close everything, the youngest first."""
        with self._lock:
            parts = list(self._open.values())
        for part in reversed(parts):
            with contextlib.suppress(OSError):
                self.close(part)
