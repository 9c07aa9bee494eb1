"""Publishes what has arrived at the destination, several checkpoints at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

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
    """

    def __init__(
        self, home: DriverHome, published: Callable[[str], None],
        refused: Callable[[str, TuneSyncError], None],
    ) -> None:  # fmt: skip
        self._home = home
        self._published = published
        self._refused = refused

    def publish(self, complete: Collection[Accepted]) -> None:
        """Publish what nodes say is there, whole.

        Raises:
            LeaseLostError: Another run took over.
            OSError: The destination does not answer; some may be published.
        """
        manifests: list[Manifest] = []
        try:
            for accepted in complete:
                with self._tells(accepted.checkpoint):
                    manifests.append(self._place(accepted))
        finally:  # all that is placed is known before any of it is recorded, side by side
            errors: list[Exception] = []
            with ThreadPoolExecutor(self._home.publish_at_once) as pool:
                list(pool.map(partial(self._try_record, errors), manifests))
            for error in sorted(errors, key=lambda e: not isinstance(e, LeaseLostError))[:1]:
                raise error

    def _try_record(self, errors: list[Exception], manifest: Manifest) -> None:
        if len(errors) < TOLD_BY_COUNT:  # else it is the place, and would say so of each
            try:
                self._record(manifest)
            except Exception as error:  # one that is refused does not hold up those after it
                errors.append(error)

    def _place(self, accepted: Accepted) -> Manifest:
        if accepted.manifest is not None:
            return accepted.manifest
        placed = self._home.committer.place(
            accepted.checkpoint, strict=accepted.strict, attempts=accepted.attempts,
            metrics=accepted.metrics,
        )  # fmt: skip
        warn_of_conflicts(accepted.checkpoint, placed.conflicts)
        return placed.manifest

    def _record(self, manifest: Manifest) -> None:
        with self._tells(manifest.checkpoint):
            self._home.committer.record(manifest)
            self._published(manifest.checkpoint)

    @contextmanager
    def _tells(self, checkpoint: str) -> Iterator[None]:
        try:
            yield
        except NOT_PUBLISHABLE as error:
            logger.error("cannot publish %s: %s", checkpoint, error)
            self._refused(checkpoint, error)
