"""Which version of the experiment state may be written when, while checkpoints travel. Pure.

State names checkpoints, and must not be at the destination before them. So a version is held
until all that it may name is stored. At most two versions are held: one that is *waiting*, whose
needs are fixed, and so come to an end; and the *newest*, which replaces itself all the time.

What a version needs is what was accepted and is not stored when it is offered, and, as it may
have been made before that, what was deleted since the version before it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

# A version may have been made before a delete and offered after it; the one after that is not.
VERSIONS_BEFORE_DELETE = 2

Write = Callable[[], None]


@dataclass(slots=True)
class HeldVersion:
    """A version.

    Attributes:
        number: Of the version; a later one has a higher number.
        needs: The checkpoints that it may name.
        files: Key of a file -> what writes it.
        is_taken: It is being written: nothing is added to it.
        taken_count: How many times a version had been taken before this one was.
    """

    number: int
    needs: frozenset[str] = frozenset()
    files: dict[str, Write] = field(default_factory=dict)
    is_taken: bool = False
    taken_count: int = 0


class Cut:
    """For one thread at a time. Checkpoints are keys."""

    def __init__(self) -> None:
        self._unstored: set[str] = set()
        self._lost: set[str] = set()
        self._doomed: dict[str, int] = {}
        self._unnamed: dict[str, int] = {}
        self._taken_count = 0
        self._newest_taken = -1
        self._versions_count = 0
        self._written = 0
        self._has_ended = self._is_last = False
        self._waiting: HeldVersion | None = None
        self._newest: HeldVersion | None = None

    def accepted(self, checkpoint: str) -> None:
        """Versions from here on may name it, and it is not stored."""
        self._unstored.add(checkpoint)
        self._doomed.pop(checkpoint, None)

    def stored(self, checkpoint: str) -> None:
        """It is published at the destination."""
        self._unstored.discard(checkpoint)

    def lost(self, checkpoint: str) -> None:
        """It will never be stored: no version that may name it is ever written.

        Ray goes on naming it until it is told to forget it; then call `doom`.
        """
        self._unstored.discard(checkpoint)
        self._lost.add(checkpoint)

    def doom(self, checkpoint: str) -> None:
        """It was deleted, or is not to be gone on from: later versions do not name it."""
        self._doomed.setdefault(checkpoint, self._versions_count)

    def spare(self, checkpoint: str) -> bool:
        """Take back `doom`: later versions name it after all. Returns whether it was doomed."""
        found = (self._doomed.pop(checkpoint, None), self._unnamed.pop(checkpoint, None))
        return found != (None, None)

    def unnamed(self, checkpoint: str) -> None:
        """No version that is taken from now on names it, whenever that was made; it is to go."""
        self._unnamed[checkpoint] = self._taken_count

    def offer(self, key: str, write: Write, *, is_state: bool) -> None:
        """Take in a file of the newest version.

        Args:
            key: Of the file.
            write: Writes it; called again after an error.
            is_state: It is the file that names checkpoints.
        """
        if is_state:
            self._versions_count += 1
        needs = self._needs_now()
        waiting = self._waiting
        if waiting is not None and self._fits(waiting, key, needs):
            waiting.files[key] = write
            waiting.number = self._versions_count
            return
        if self._newest is None:
            self._newest = HeldVersion(self._versions_count)
        self._newest.number, self._newest.needs = self._versions_count, needs
        self._newest.files[key] = write

    def ended(self, *, is_last: bool = True) -> None:
        """The control loop has ended.

        `is_last`: the newest version was made after all deletes, so it names nothing of that, and
        nothing more is offered. Else a version that was made before may still come: what it may
        name travels, and is deleted by the next run.
        """
        self._has_ended, self._is_last = True, is_last
        if self._newest is not None:
            self._newest.needs = self._needs_now()

    def take(self) -> HeldVersion | None:
        """A version that may be written now; `wrote` or `failed` has to follow."""
        self._promote()
        waiting = self._waiting
        if waiting is None or waiting.is_taken or waiting.needs & (self._unstored | self._lost):
            return None
        waiting.is_taken = True
        waiting.taken_count = self._taken_count
        self._taken_count += 1
        return waiting

    def require(self, held: HeldVersion, checkpoints: Collection[str]) -> None:
        """A version that was taken turns out to need more: it waits again."""
        held.needs |= frozenset(checkpoints)
        held.is_taken = False

    def failed(self, held: HeldVersion) -> None:
        """A version could not be written now; it is taken again later."""
        held.is_taken = False

    def wrote(self, held: HeldVersion) -> None:
        """All files of a version are written."""
        self._written = max(self._written, held.number)
        self._newest_taken = max(self._newest_taken, held.taken_count)
        self._waiting = None

    def pinned(self) -> frozenset[str]:
        """What the waiting version needs, and is not stored: it travels even if it is deleted."""
        self._promote()
        return self._waiting.needs & self._unstored if self._waiting else frozenset()

    def droppable(self) -> list[str]:
        """Deleted checkpoints that are not stored, and that no version needs: they never travel."""
        return [c for c in self._doomed if c in self._unstored and not self._is_needed(c)]

    def dropped(self, checkpoint: str) -> None:
        """It will not be stored, and nobody minds."""
        self._unstored.discard(checkpoint)
        self._doomed.pop(checkpoint, None)

    def deletable(self) -> list[str]:
        """Deleted checkpoints that are stored, and that the state that is written does not name."""
        gone = self._unstored | self._lost
        is_last = self._is_last and self._written == self._versions_count
        versions = 1 if is_last else VERSIONS_BEFORE_DELETE
        doomed = [
            c for c, at in self._doomed.items() if c not in gone and self._written >= at + versions
        ]
        return doomed + [c for c, at in self._unnamed.items() if self._newest_taken >= at]

    def deleted(self, checkpoint: str) -> None:
        """It is gone."""
        self._doomed.pop(checkpoint, None)
        self._unnamed.pop(checkpoint, None)

    @property
    def unstored(self) -> frozenset[str]:
        """What was accepted and is not stored."""
        return frozenset(self._unstored)

    @property
    def is_settled(self) -> bool:
        """Whether the newest version that was offered is written."""
        is_empty = self._waiting is None and self._newest is None
        return is_empty and self._written >= self._versions_count

    @property
    def is_stuck(self) -> bool:
        """Whether what is held can never be written, as it may name what is lost."""
        self._promote()
        return self._waiting is None and not self.is_settled

    def held_back(self) -> frozenset[str]:
        """Deleted checkpoints that a version to come may still need, though none does yet."""
        if self._has_ended:  # they are dropped, or travel
            return frozenset()
        return frozenset(c for c in self._doomed if c in self._unstored) - self.pinned()

    # Inside

    def _fits(self, waiting: HeldVersion, key: str, needs: frozenset[str]) -> bool:
        if self._newest is not None or waiting.is_taken:  # it would overtake an earlier version
            return False
        return key not in waiting.files and needs <= waiting.needs

    def _needs_now(self) -> frozenset[str]:
        return frozenset(c for c in self._unstored | self._lost if not self._is_out(c))

    def _is_out(self, checkpoint: str) -> bool:
        """Whether a version offered now surely does not name it."""
        at = self._doomed.get(checkpoint)
        if at is None:
            return False
        return self._versions_count >= at + (1 if self._is_last else VERSIONS_BEFORE_DELETE)

    def _is_needed(self, checkpoint: str) -> bool:
        """Whether a version that is held, or one still to be offered, may name it."""
        held = [h for h in (self._waiting, self._newest) if h is not None]
        if any(checkpoint in version.needs for version in held):
            return True
        return not self._is_out(checkpoint) and not self._is_last

    def _promote(self) -> None:
        """The newest waits once nothing else does, unless it can never be written."""
        waiting, newest = self._waiting, self._newest
        if waiting is not None and waiting.needs & self._lost:
            self._waiting = waiting = None
        if waiting is None and newest is not None and not newest.needs & self._lost:
            self._waiting, self._newest = newest, None
