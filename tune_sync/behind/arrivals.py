"""Publishes what has arrived at the destination, several checkpoints at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tune_sync.errors import NOT_PUBLISHABLE, LeaseLostError, TuneSyncError
from tune_sync.homes.sites import DriverHome
from tune_sync.manifest import Manifest, warn_of_conflicts
from tune_sync.publisher import TOLD_BY_COUNT
from tune_sync.sending.backlog import Accepted

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


class Arrivals:
    """One run's. For one thread.

    Args:
        home: The destination.
        published: Told of each checkpoint that is published. May be called from any thread.
        refused: Told of each that can never be, and why; likewise.

    Attributes:
        failing: What could not be published when it was tried last, and why.
    """

    def __init__(
        self, home: DriverHome, published: Callable[[str], None],
        refused: Callable[[str, TuneSyncError], None],
    ) -> None:  # fmt: skip
        self._home = home
        self._published = published
        self._refused = refused
        self.failing: dict[str, Exception] = {}

    def publish(self, complete: Collection[Accepted]) -> Exception | None:
        """Publish what nodes say is there, whole.

        One that fails keeps none of the others from it, and is tried after them the next time. Two
        in a row that fail tell of the destination.

        Returns:
            Why one could not be published now; None: all are, or were refused.

        Raises:
            LeaseLostError: Another run took over.
        """
        left = {accepted.checkpoint for accepted in complete}
        self.failing = {c: error for c, error in self.failing.items() if c in left}
        turns = {checkpoint: turn for turn, checkpoint in enumerate(self.failing, 1)}
        manifests: list[Manifest] = []
        in_a_row = 0
        try:
            for accepted in sorted(complete, key=lambda a: turns.get(a.checkpoint, 0)):
                with self._tells(accepted.checkpoint):
                    manifests += self._placed(accepted)
                in_a_row = in_a_row + 1 if accepted.checkpoint in self.failing else 0
                if in_a_row == TOLD_BY_COUNT:
                    break
        finally:  # all that is placed is known before any of it is recorded, side by side
            with ThreadPoolExecutor(self._home.publish_at_once) as pool:
                list(pool.map(self._record, manifests))
        return next(iter(self.failing.values()), None)

    def _placed(self, accepted: Accepted) -> list[Manifest]:
        placed: list[Manifest] = []
        with self._notes(accepted.checkpoint):
            placed.append(self._place(accepted))
        return placed

    def _place(self, accepted: Accepted) -> Manifest:
        if accepted.manifest is not None:
            return accepted.manifest
        placed = self._home.committer.place(
            accepted.checkpoint, strict=accepted.strict, attempts=accepted.attempts,
            metrics=accepted.metrics,
        )  # fmt: skip
        warn_of_conflicts(accepted.checkpoint, placed.conflicts)
        # If `record` does all, and its answer is lost, there is nothing left to be placed.
        accepted.manifest = placed.manifest
        return placed.manifest

    def _record(self, manifest: Manifest) -> None:
        with self._tells(manifest.checkpoint), self._notes(manifest.checkpoint):
            self._home.committer.record(manifest)
            self._published(manifest.checkpoint)

    @contextmanager
    def _notes(self, checkpoint: str) -> Iterator[None]:
        try:
            yield
        except (LeaseLostError, *NOT_PUBLISHABLE):
            raise
        except Exception as error:
            self.failing.pop(checkpoint, None)  # as the last: the others are tried before it
            self.failing[checkpoint] = error
        else:
            self.failing.pop(checkpoint, None)

    @contextmanager
    def _tells(self, checkpoint: str) -> Iterator[None]:
        try:
            yield
        except NOT_PUBLISHABLE as error:
            logger.error("cannot publish %s: %s", checkpoint, error)
            self._refused(checkpoint, error)
