"""The runs of this process that have a lease, and which of them a new run may replace.

A notebook lives on when its `fit()` is interrupted, and makes a Tuner anew when a cell is run
again.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Protocol

from tune_sync.homes.lease import Holder

RAY_TUNE = "ray.tune"


class OwnRun(Protocol):
    """A run of this process.

    Attributes:
        owner: Its id.
        where: Its experiment directory, as a path or URL.
        begun: Whether training has started.
    """

    owner: str
    where: str
    begun: bool

    @property
    def is_left(self) -> bool:
        """Whether its `fit()` is over, and has not ended it."""

    def give_back(self) -> None:
        """End a run that did not begin."""

    def leave(self) -> None:
        """End a run that is left."""


class OwnRuns:
    """See the module's text. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._runs: dict[str, OwnRun] = {}
        self._table = threading.Lock()  # never held while a run is ended

    def add(self, run: OwnRun) -> None:
        """Note a run that has its lease. Others of that directory have lost it, and end."""
        with self._table:
            replaced = [r for r in self._runs.values() if r.where == run.where]
            self._runs[run.owner] = run
        for other in replaced:
            other.give_back()

    def remove(self, owner: str) -> None:
        """Forget a run that has given its lease back."""
        with self._table:
            self._runs.pop(owner, None)

    def end_left(self, where: str) -> None:
        """End those runs of a directory that are left, before another one takes it."""
        for run in self._of(where):
            if run.is_left:
                run.leave()

    def end_unbegun(self, where: str) -> None:
        """End those that did not begin, so that the lease is as they found it.

        Should the next one fail, it is handed back so. Their own `fit()` takes it once more.
        """
        for run in self._of(where):
            if not run.begun:
                run.give_back()

    def may_replace(self, holder: Holder) -> bool:
        """Whether the holder of a lease is one that did not begin, or is left."""
        with self._table:
            run = self._runs.get(holder.owner)
        return run is not None and (not run.begun or run.is_left)

    def _of(self, where: str) -> list[OwnRun]:
        with self._table:
            return [run for run in self._runs.values() if run.where == where]


# Those of this process.
OWN = OwnRuns()


class Call:
    """The call of `fit()` that a run is trained in. Its frame is the one sign that it goes on."""

    def __init__(self) -> None:
        self._frame: FrameType | None = None

    def begin(self) -> None:
        """It is the outermost one of Ray Tune that this is called in, if there is one."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not _is_ray(frame):
            frame = frame.f_back
        while frame is not None and frame.f_back is not None and _is_ray(frame.f_back):
            frame = frame.f_back
        self._frame = frame

    def forget(self) -> None:
        """Nobody asks any more: let go what it holds."""
        self._frame = None

    @property
    def is_over(self) -> bool:
        """Whether it began, and has returned or raised; its variables are let go then."""
        frame = self._frame
        if frame is None:
            return False
        try:
            frame.clear()
        except RuntimeError:  # it goes on, in whatever thread
            return False
        return True


def _is_ray(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name == RAY_TUNE or name.startswith(RAY_TUNE + ".")
