"""Whatever order Ray writes and copies in: what is there at any moment makes all trials on restore.

A restore takes the trials of the state, and has those made that the files of the search do not
count. So none is left out if there is no state, or if both are there and the search is no newer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from hypothesis.strategies import booleans, sampled_from

from tune_sync.layout import SEARCH_FILES
from tune_sync.search_order import Put, SearchOrder

STATE = "state"
SEARCHES = [name.replace("*", "1") for name in SEARCH_FILES[1:]]


class Ordered(RuleBasedStateMachine):
    """Ray's control loop, its threads that copy, and ours that put."""

    @initialize(is_new=booleans())
    def begin(self, is_new: bool) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.staging = Path(self.folder.name)
        self.order, self.is_new = SearchOrder(), is_new
        self.made, self.steps = 0, list[Callable[[], None]]()
        self.copies: dict[str, tuple[int, Callable[[], int] | int]] = {}
        self.putting: list[tuple[str, int, int]] = []
        self.there = {} if is_new else dict.fromkeys([STATE, *SEARCHES], 0)
        self.has_ended = False

    def write(self, name: str, version: int) -> None:
        (self.staging / "new").write_text(str(version))
        (self.staging / "new").rename(self.staging / name)

    @precondition(lambda self: not self.steps and not self.has_ended)
    @rule(changed=sampled_from([[], SEARCHES[:1], SEARCHES]))
    def save(self, changed: list[str]) -> None:
        """The steps of a save, done one at a time by `step`."""
        number = self.made = self.made + 1
        names = SEARCHES if number == 1 else changed
        self.steps = [partial(self.write, name, number) for name in [STATE, *names]]
        self.steps.append(partial(self.order.made, str(self.staging), str))

    @precondition(lambda self: self.steps)
    @rule()
    def step(self) -> None:
        self.steps.pop(0)()

    @precondition(lambda self: self.made > 1 or (self.made and not self.steps))
    @rule(name=sampled_from([STATE, *SEARCHES]))
    def opened(self, name: str) -> None:
        """A thread begins to copy a file: it is told to once a first save is done."""
        if name not in self.copies:
            when = self.order.read_state() if name == STATE else self.order.read_search(name)
            self.copies[name] = -1, when

    @precondition(lambda self: self.made and not self.steps)
    @rule(name=sampled_from([STATE, *SEARCHES]))
    def copied_and_put(self, name: str) -> None:
        """All of it while nothing else happens."""
        self.copy(name)
        while self.putting:
            self.arrives(fails=False, at=0)

    @precondition(lambda self: self.made and not self.steps and not self.has_ended)
    @rule(name=sampled_from([STATE, *SEARCHES]))
    def copied_while_callbacks_are_asked(self, name: str) -> None:
        """Ray has written all of a version, and ours has not heard of it yet."""
        self.save(SEARCHES)
        while len(self.steps) > 1:
            self.step()
        self.copy(name)
        while self.putting:
            self.arrives(fails=False, at=0)

    @precondition(lambda self: self.steps)
    @rule()
    def saved(self) -> None:
        """All steps that are left."""
        while self.steps:
            self.step()

    def copy(self, name: str) -> None:
        for do in (self.opened, self.read, partial(self.closed, fails=False)):
            do(name)

    @rule(name=sampled_from([STATE, *SEARCHES]))
    def read(self, name: str) -> None:
        if name in self.copies and self.copies[name][0] < 0:
            self.copies[name] = int((self.staging / name).read_text()), self.copies[name][1]

    @rule(name=sampled_from([STATE, *SEARCHES]), fails=booleans())
    def closed(self, name: str, fails: bool) -> None:
        """It was read, or could not be read."""
        if name not in self.copies or (self.copies[name][0] < 0 and not fails):
            return
        version, when = self.copies.pop(name)
        if version < 0:
            return
        if isinstance(when, int):
            put = partial(self.put, name, version, when)
            self.order.put_state(name, when, Put(put, put), is_new=self.is_new)
        else:
            put = partial(self.put, name, version, needed := when())
            first = put if self.is_new else None
            self.order.put_search(name, needed, Put(put, put), first=first)

    def put(self, name: str, version: int, when: int) -> None:
        """In a thread, in its turn; of several the newest."""
        self.putting = [one for one in self.putting if one[0] != name]
        self.putting.append((name, version, when))

    @precondition(lambda self: self.putting)
    @rule(fails=booleans(), at=sampled_from([0, -1]))
    def arrives(self, fails: bool, at: int) -> None:
        name, version, when = self.putting.pop(at)
        if fails:
            self.order.failed(name)
            return
        self.there[name] = version
        if name == STATE:
            self.order.state_is_there(when)
        else:
            self.order.search_is_there(name)

    @precondition(lambda self: self.made and not self.steps)
    @rule()
    def all_is_copied_at_the_end(self) -> None:
        """Ray's last save is forced and waited for: nothing of it is left out."""
        self.has_ended = True
        for _ in range(2):  # the first one of all may have been an old one that failed
            for name in [*SEARCHES, STATE]:
                self.copy(name)
            while self.putting:
                self.arrives(fails=False, at=0)
        for name in [STATE, *SEARCHES]:
            assert self.there[name] == int((self.staging / name).read_text()), name

    @invariant()
    def makes_all_trials(self) -> None:
        if not hasattr(self, "there") or STATE not in self.there:
            return
        for name in SEARCHES:
            assert name in self.there, f"{name} is missing beside a state"
            assert self.there[name] <= self.there[STATE], f"{name} is newer than the state"

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestOrdered = Ordered.TestCase
TestOrdered.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
