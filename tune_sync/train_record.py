"""What Ray Train notes of its checkpoints, and in which order.

With a report of all ranks its controller writes its record, which names the new checkpoint, then
deletes those that are too many, and only then calls callbacks. So what a record names is published
before it is put in its place, and nothing is deleted while the last one is not stored.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection
from typing import Any, Protocol

from tune_sync import layout
from tune_sync.transfer.uploads import Uploads

_NAME = "checkpoint_dir_name"

# See `Home.publish`.
Conflicts = tuple[tuple[str, int, int], ...]


def named_in(record: bytes) -> list[str]:
    """The checkpoints that a record names, the newest last; none if its shape is not known."""
    try:
        body = json.loads(record)
        noted = [*body["checkpoint_results"], body["latest_checkpoint_result"]]
        names = [str(one[_NAME]) for one in noted if one is not None]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    found = {name for name in names if layout.is_checkpoint_name(name)}
    return sorted(found, key=layout.by_age)


class Publish(Protocol):
    """Publishes a checkpoint; see `Run.publish`."""

    def __call__(self, checkpoint: str, attempts: Collection[str], metrics: Any) -> Conflicts:
        """Of what was sealed in these attempts; returns `Union.conflicts`."""


class Published:
    """What one process publishes. Methods may be called from any thread.

    Args:
        uploads: What it knows of checkpoints.
        publish: Publishes one.
        checkpoint_depth: See `layout.classify`.
    """

    def __init__(self, uploads: Uploads, publish: Publish, checkpoint_depth: int) -> None:
        self._uploads, self._publish, self._depth = uploads, publish, checkpoint_depth
        self._early: dict[str, Conflicts] = {}
        self._published: set[str] = set()  # workers tell again of what they reported before
        self._turn = threading.Lock()

    def before(self, key: str) -> Callable[[bytes], None] | None:
        """Takes all of a file before it is put in its place; None: nothing has to be done."""
        is_record = key == layout.TRAIN_RECORD and not self._depth  # else it is somebody else's
        return self._publish_named if is_record else None

    def of_report(self, checkpoint: str, metrics: Any) -> Conflicts:
        """Publish what was reported, or say what came of it where a record has named it before."""
        if self._depth:
            return self._publish(checkpoint, self._uploads.take(checkpoint), metrics)
        with self._turn:
            early = self._early.pop(checkpoint, None)
            return self._publish_reported(checkpoint, metrics) if early is None else early

    def _publish_named(self, record: bytes) -> None:
        with self._turn:
            named = named_in(record)
            self._published.intersection_update(named)
            for checkpoint in named:
                if checkpoint not in self._published and self._uploads.reported_at(checkpoint):
                    self._early[checkpoint] = self._publish_reported(checkpoint, None)

    def _publish_reported(self, checkpoint: str, metrics: Any) -> Conflicts:
        found = self._publish(checkpoint, self._uploads.reported_at(checkpoint), metrics)
        self._published.add(checkpoint)
        self._uploads.take(checkpoint)  # not before: who comes next tries again
        return found
