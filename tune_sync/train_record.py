"""What Ray Train notes of its checkpoints, and in which order.

With a report of all ranks its controller writes its record, which names the new checkpoint, then
deletes those that are too many, and only then calls callbacks. So what a record names is published
before it is put in its place, and what is to be deleted while the last one is not stored waits for
one that is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn, Protocol

from tune_sync import layout
from tune_sync.errors import NotStoredError
from tune_sync.homes.home import Home
from tune_sync.homes.saved_train import named_in, note_stored
from tune_sync.spec import Options
from tune_sync.transfer.uploads import Uploads

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# See `Home.publish`.
Conflicts = tuple[tuple[str, int, int], ...]


# Of what is in a file that is put in its place within, and where.
Storing = Callable[[bytes, Home], AbstractContextManager[None]]


class Publish(Protocol):
    """Publishes a checkpoint; see `Run.publish`."""

    def __call__(self, checkpoint: str, attempts: Collection[str], metrics: Any) -> Conflicts:
        """Of what was sealed in these attempts; returns `Union.conflicts`."""


class Published:
    """What one process publishes. Methods may be called from any thread.

    Args:
        uploads: What it knows of checkpoints.
        publish: Publishes one.
        remove: Deletes what is at a key.
        options: Of the run.
    """

    def __init__(
        self, uploads: Uploads, publish: Publish, remove: Callable[[str], None], options: Options
    ) -> None:
        self._uploads, self._publish, self._remove = uploads, publish, remove
        self._depth = options.checkpoint_depth
        self._early: dict[str, tuple[Collection[str], Conflicts]] = {}  # of which attempts
        self._published: set[str] = set()  # workers tell again of what they reported before
        self._to_delete: set[str] = set()
        self._is_noted = False
        self._turn = threading.Lock()

    def storing(self, key: str) -> Storing | None:
        """What takes all of a file around its way to its place; None: nothing has to be done."""
        is_record = key == layout.TRAIN_RECORD and not self._depth  # else it is somebody else's
        return self._storing if is_record else None

    def delete_later(self, key: str) -> NoReturn:
        """Delete it once a record is stored that does not name it. Raises NotStoredError."""
        self._to_delete.add(key)
        raise NotStoredError(f"{key} stays: {layout.TRAIN_RECORD}, which names it, is not new")

    def of_report(self, checkpoint: str, metrics: Any) -> Conflicts:
        """Publish what was reported, or say what came of it where a record has named it before."""
        if self._depth:
            return self._publish(checkpoint, self._uploads.take(checkpoint), metrics)
        with self._turn:
            attempts = self._uploads.reported_at(checkpoint)
            known, early = self._early.pop(checkpoint, ((), ()))
            if known and set(attempts) <= set(known):
                return early
            return self._publish_reported(checkpoint, attempts, metrics)

    @contextmanager
    def _storing(self, record: bytes, home: Home) -> Iterator[None]:
        named = named_in(record)
        with self._turn:
            self._published.intersection_update(named)
            for checkpoint in named:
                attempts = self._uploads.reported_at(checkpoint)
                if attempts and checkpoint not in self._published:
                    found = self._publish_reported(checkpoint, attempts, None)
                    self._early[checkpoint] = attempts, found
        yield
        if not self._is_noted:
            note_stored(home)
            self._is_noted = True
        for key in self._to_delete.difference(named) if named else ():
            try:
                self._remove(key)
                self._to_delete.remove(key)
            except Exception as error:  # the record is stored: the next one tries again
                logger.warning("%s is not deleted: %s", key, error)

    def _publish_reported(
        self, checkpoint: str, attempts: Collection[str], metrics: Any
    ) -> Conflicts:
        found = self._publish(checkpoint, attempts, metrics)
        self._published.add(checkpoint)
        self._uploads.take(checkpoint)  # not before: who comes next tries again
        return found
