"""Which version of Ray's state was made after which delete. Pure.

Ray's control loop deletes, and makes versions; a thread of Ray copies them to where results go,
later or never: the loop may end by an exception, and Ray only logs that a version has failed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deleted:
    """A delete; called, it tells whether a version has arrived that was made after it.

    Attributes:
        made_count: See `Versions.made_count`, when it was asked for.
        arrived_count: Returns the latest that has arrived.
    """

    made_count: int
    arrived_count: Callable[[], int]

    def __call__(self) -> bool:
        return self.is_before(self.arrived_count())

    def is_before(self, version: int) -> bool:
        """Whether a version was made after it, and so does not name what was deleted."""
        return version > self.made_count


class Versions:
    """Of one run. `made` and `deleted` are for the thread of Ray's control loop."""

    def __init__(self) -> None:
        self._made_count = 0
        self._deleted_at = -1
        self._arrived_count = 0

    def made(self) -> None:
        """Ray has made a version, and its file is complete."""
        self._made_count += 1

    @property
    def made_count(self) -> int:
        """Tells versions apart: whoever reads the newest one now reads this one, or a later one."""
        return self._made_count

    def deleted(self) -> Deleted:
        """A checkpoint was deleted: versions that are made from now on do not name it."""
        self._deleted_at = self._made_count
        return Deleted(self._made_count, lambda: self._arrived_count)

    def copying(self) -> Callable[[], None]:
        """Ray is about to read the file of its newest version.

        Returns:
            To be called when what was read has arrived: that version, or one that was made since.
        """
        count = self._made_count

        def arrived() -> None:
            self._arrived_count = max(self._arrived_count, count)

        return arrived

    @property
    def is_last_here(self) -> bool:
        """Whether a version has arrived that names nothing of what was deleted."""
        return self._arrived_count > self._deleted_at
