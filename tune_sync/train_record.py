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
from contextlib import contextmanager
from typing import NoReturn

from tune_sync import layout
from tune_sync.errors import NotStoredError
from tune_sync.homes.home import Home
from tune_sync.homes.saved_train import named_in, note_stored
from tune_sync.manifest import Conflicts
from tune_sync.spec import Options
from tune_sync.transfer.streams import Storing
from tune_sync.transfer.uploads import Uploads

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


class TrainRecord:
    """What one process publishes of Ray Train's. Methods may be called from any thread.

    Args:
        uploads: What it knows of checkpoints.
        publish: Publishes one, of what was sealed in these attempts.
        remove: Deletes what is at a key.
        options: Of the run.
    """

    def __init__(
        self, uploads: Uploads, publish: Callable[[str, Collection[str]], Conflicts],
        remove: Callable[[str], None], options: Options,
    ) -> None:  # fmt: skip
        self._uploads, self._publish, self._remove = uploads, publish, remove
        self._is_train = not options.checkpoint_depth
        self._early: dict[str, tuple[Collection[str], Conflicts]] = {}  # of which attempts
        self._published: set[str] = set()  # workers tell again of what they reported before
        self._to_delete: set[str] = set()
        self._is_noted = False
        self._turn = threading.Lock()

    def storing(self, key: str) -> Storing | None:
        """What a file is put in its place within; None: nothing has to be done."""
        # A file of that name in an experiment of Ray Tune's is somebody else's.
        return self._storing if self._is_train and key == layout.TRAIN_RECORD else None

    def refuse_delete(self, key: str) -> NoReturn:
        """Raise NotStoredError; it is deleted once a record is stored that does not name it."""
        self._to_delete.add(key)
        raise NotStoredError(f"{key} stays: {layout.TRAIN_RECORD}, which names it, is not new")

    def of_report(self, checkpoint: str) -> Conflicts:
        """Publish what was reported, or say what came of it where a record has named it before."""
        with self._turn:
            attempts = self._uploads.reported_at(checkpoint)
            known, early = self._early.pop(checkpoint, ((), ()))
            if known and set(attempts) <= set(known):
                return early
            return self._publish_reported(checkpoint, attempts)

    @contextmanager
    def _storing(self, record: bytes, home: Home) -> Iterator[None]:
        named = named_in(record)
        with self._turn:
            self._published.intersection_update(named)
            for checkpoint in named:
                attempts = self._uploads.reported_at(checkpoint)
                if attempts and checkpoint not in self._published:
                    found = self._publish_reported(checkpoint, attempts)
                    self._early[checkpoint] = attempts, found
        yield
        self._note_stored(home)
        for key in self._to_delete.difference(named) if named else ():
            try:
                self._remove(key)
                self._to_delete.remove(key)
            except Exception as error:  # the record is stored: the next one tries again
                logger.warning("%s is not deleted: %s", key, error)

    def _note_stored(self, home: Home) -> None:
        """A hint for a resume; what it names is stored, whatever comes of this."""
        if self._is_noted:
            return
        try:
            note_stored(home)
            self._is_noted = True
        except Exception as error:  # the next one tries again
            logger.warning("%s is not written: %s", layout.TRAIN_RECORD_STORED, error)

    def _publish_reported(self, checkpoint: str, attempts: Collection[str]) -> Conflicts:
        found = self._publish(checkpoint, attempts)
        self._published.add(checkpoint)
        self._uploads.take(checkpoint)  # not before: who comes next tries again
        return found
