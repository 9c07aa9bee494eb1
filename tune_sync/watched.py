"""Tells a second place of results what the publisher does at home."""

from __future__ import annotations

from typing import Protocol

from tune_sync.manifest import Manifest
from tune_sync.publisher import Recorder


class Watcher(Protocol):
    """What hears of a run's results. See `mirror.mirror.Mirror`.

    Methods may be called from any thread.
    """

    def recorded(self, checkpoint: str) -> None:
        """A checkpoint is published at home. Returns at once."""

    def retiring(self, checkpoint: str) -> None:
        """A checkpoint is about to be deleted at home. Returns when it may be."""

    def state_written(self) -> None:
        """Newer state is at home. Returns at once."""

    def flush(self) -> None:
        """Return when all is at the second place. Raises NotStoredError naming what is not."""

    def close(self) -> None:
        """Give up what is not there. May be called twice."""


class WatchedCommitter:
    """A committer whose records and deletes a watcher hears of.

    Attributes:
        watcher: None while there is nobody to tell.
    """

    def __init__(self, committer: Recorder) -> None:
        self._committer = committer
        self.watcher: Watcher | None = None

    def record(self, manifest: Manifest) -> None:
        """See `commit.Committer.record`."""
        self._committer.record(manifest)
        if self.watcher is not None:
            self.watcher.recorded(manifest.checkpoint)

    def retire(self, checkpoint: str) -> None:
        """See `commit.Committer.retire`."""
        if self.watcher is not None:
            self.watcher.retiring(checkpoint)
        self._committer.retire(checkpoint)

    def discard_attempt(self, checkpoint: str, attempt: str) -> None:
        """See `commit.Committer.discard_attempt`."""
        self._committer.discard_attempt(checkpoint, attempt)
