"""In which order a run's state and what its search has made get to where results go. Pure.

Ray's state names the trials that there are; files of the search beside it tell which ones it has
made by now. A restore makes none that those files count as made. So a file of the search that is
newer than the state leaves trials out, and so does a state without any: all count as made then. Ray
writes both in one version, and copies them in any order, in threads, while it may write the next.

- A file of the search waits for a state of its version, or of a later one.
- But the first one of a new run goes ahead, and the first state waits for it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from tune_sync.layout import is_search

# Inode, time of change in nanoseconds, and length in bytes.
_Look = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Put:
    """How to put a file that was read.

    Attributes:
        now: Called if it may go at once.
        later: Called once it may.
        drop: Called if a newer one takes its place before.
    """

    now: Callable[[], None]
    later: Callable[[], None]
    drop: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class _Early:
    may_go: Callable[[], bool]
    put: Put


class SearchOrder:
    """Of one run. Methods may be called from any thread, `made` from that of Ray's control loop.

    Versions are counted from 1. What may not go yet waits; a newer one of its key takes its place.
    """

    def __init__(self) -> None:
        self._made_count = 0
        self._staging = ""
        # Name of a file of the search where Ray writes it -> what it looks like, and since when.
        self._written: dict[str, tuple[_Look | None, int]] = {}
        self._keys: set[str] = set()
        self._first: dict[str, int] = {}  # those that came first -> the version they need
        self._there: set[str] = set()
        self._state_there = 0
        self._has_ended = False
        self._early: dict[str, _Early] = {}
        # None is put after a newer one. Who puts one that is there at once goes on with others.
        self._turn = threading.RLock()

    def made(self, staging: str, place: Callable[[str], str]) -> None:
        """Ray has made a version: state, and then files of the search.

        Args:
            staging: Where its driver writes them; "" if that is not known.
            place: Of the name of a file: its key where results go.
        """
        self._staging = staging
        self._made_count += 1
        with suppress(OSError):  # not what Ray's save may fail for
            self._look_at_all()
        self._keys = {place(name) for name in self._written}

    def read_state(self) -> int:
        """Ray is about to read its state: of this version, or of a later one."""
        return self._made_count

    def read_search(self, name: str) -> Callable[[], int]:
        """Ray is about to read a file of the search.

        Returns:
            To be called when it was read: the version of the state that has to be there.
        """
        at_first, before = self._made_count, self._look(name)

        def needed() -> int:
            look, since = self._written.get(name, (None, at_first))
            if before == look == self._look(name):
                return since
            return self._made_count + 1  # it may be of a version that Ray is just making

        return needed

    def put_state(self, key: str, version: int, put: Put, *, is_new: bool) -> None:
        """Put a state now or later.

        Args:
            key: Of the file.
            version: See `read_state`.
            put: Does it.
            is_new: Whether the run is: no trials were there before.
        """
        self._do(key, partial(self._may_state_go, version, is_new), put)

    def put_search(
        self, key: str, needed: int, put: Put, *, first: Callable[[], None] | None
    ) -> None:
        """Put a file of the search now or later.

        Args:
            key: Of the file.
            needed: See `read_search`.
            put: Does it.
            first: Puts the first one, without any state; None: the run is not new.
        """
        with self._turn:
            if first is not None and key not in self._first:
                self._first[key] = needed
                self._drop_older(key)
                first()
                return
            # What was read later may be known to need less than what was read before it.
            if key in self._first:
                self._first[key] = min(needed, self._first[key])
            self._do(key, lambda: needed <= self._state_there, put)
            self._go_on()

    def state_is_there(self, version: int) -> None:
        """A state of that version is where results go."""
        with self._turn:
            self._state_there = max(self._state_there, version)
            self._go_on()

    def search_is_there(self, key: str) -> None:
        """A file of the search is."""
        with self._turn:
            self._there.add(key)
            self._go_on()

    def failed(self, key: str) -> None:
        """It could not be put. If that was the first one, the next one is."""
        with self._turn:
            if key not in self._there:
                self._first.pop(key, None)

    def ended(self) -> None:
        """No version will be made any more: a state that still waits is better than none."""
        with self._turn:
            self._has_ended = True
            self._go_on()

    def _look_at_all(self) -> None:
        for name in os.listdir(self._staging) if self._staging else ():
            if is_search(name):
                look, (before, since) = self._look(name), self._written.get(name, (None, 0))
                is_same = look is not None and look == before
                self._written[name] = look, since if is_same else self._made_count

    def _look(self, name: str) -> _Look | None:
        try:
            found = os.stat(os.path.join(self._staging, name))
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _may_state_go(self, version: int, is_new: bool) -> bool:
        if not is_new or self._has_ended:
            return True
        is_later = version >= max(self._first.values(), default=0)
        return is_later and self._keys <= self._there

    def _do(self, key: str, may_go: Callable[[], bool], put: Put) -> None:
        with self._turn:
            self._drop_older(key)
            if may_go():
                put.now()
            else:
                self._early[key] = _Early(may_go, put)

    def _drop_older(self, key: str) -> None:
        older = self._early.pop(key, None)
        if older is not None:
            older.put.drop()

    def _go_on(self) -> None:
        for key, early in list(self._early.items()):
            if early.may_go() and self._early.get(key) is early:
                del self._early[key]
                early.put.later()
