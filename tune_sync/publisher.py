"""Publishes in the background what the control loop placed, in the order that keeps promises.

* A placed checkpoint is recorded (made durable, manifest written) by a thread of its own.
* State waits for `drain`: it is written after the records of what it names.
* A delete is applied only after state that no longer names the checkpoint was written. A
  snapshot may have been taken before the delete was asked for and written after it, so two
  state writes have to pass, or one once the control loop has ended (`flush`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from tune_sync.commit import Committer
from tune_sync.errors import NotStoredError, SyncTimeoutError
from tune_sync.manifest import Manifest

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

STATE_WRITES_BEFORE_DELETE = 2


class Publisher:
    """One background thread for one run's driver. Methods may be called from any thread."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._todo: deque[Callable[[], None]] = deque()
        self._doomed: dict[str, int] = {}
        self._due: set[str] = set()
        self._retiring = ""
        self._failed: dict[str, tuple[Manifest, Exception]] = {}
        self._queue_changed = threading.Condition()
        self._busy = False
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="tune_sync-publish", daemon=True)
        self._thread.start()

    def record_later(self, manifest: Manifest) -> None:
        """Record a placed checkpoint soon. Returns at once."""
        self._enqueue(lambda: self._record(manifest))

    def keep(self, checkpoint: str) -> None:
        """Take back a delete: the name is about to be used again. Call it before `place`."""
        with self._queue_changed:
            self._doomed.pop(checkpoint, None)
            self._due.discard(checkpoint)
            self._queue_changed.wait_for(lambda: self._retiring != checkpoint)

    def retire_later(self, checkpoint: str) -> None:
        """Delete a checkpoint once no state names it any more. Returns at once."""
        with self._queue_changed:
            self._doomed.setdefault(checkpoint, 0)

    def discard_later(self, attempts: list[tuple[str, str]]) -> None:
        """Drop attempts `(checkpoint, attempt)` whose writer is gone. Returns at once."""
        if attempts:
            self._enqueue(lambda: self._discard(attempts))

    def state_written(self) -> None:
        """Tell that a state file was written: deletes asked for long enough before it can go."""
        with self._queue_changed:
            for checkpoint in self._doomed:
                self._doomed[checkpoint] += 1
        self._retire_due(STATE_WRITES_BEFORE_DELETE)

    def drain(self, timeout_s: float) -> None:
        """Return when all that was placed is recorded.

        Raises:
            NotStoredError: Something could not be recorded; names it and why.
            SyncTimeoutError: It took longer than `timeout_s`.
        """
        if self._failed:
            self._enqueue(self._record_failed)
        with self._queue_changed:
            if not self._queue_changed.wait_for(
                lambda: not self._todo and not self._busy, timeout_s
            ):
                raise SyncTimeoutError(
                    f"{len(self._todo) + 1} checkpoints are still being published after "
                    f"{timeout_s:.0f} s; is the disk of the driver's node hanging?"
                )
            if self._failed:
                raise NotStoredError("; ".join(f"{c}: {e}" for c, (_, e) in self._failed.items()))

    def flush(self, timeout_s: float) -> None:
        """`drain`, then apply the deletes that the last state no longer names."""
        self._retire_due(1)
        self.drain(timeout_s)

    def close(self) -> None:
        """End the thread after what is queued. May be called twice."""
        with self._queue_changed:
            self._closing = True
            self._queue_changed.notify_all()
        self._thread.join()

    def _retire_due(self, state_writes: int) -> None:
        with self._queue_changed:
            due = [c for c, count in self._doomed.items() if count >= state_writes]
            for checkpoint in due:
                del self._doomed[checkpoint]
                self._due.add(checkpoint)
        if due:
            self._enqueue(self._retire_all_due)

    def _enqueue(self, job: Callable[[], None]) -> None:
        with self._queue_changed:
            self._todo.append(job)
            self._queue_changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._queue_changed:
                self._queue_changed.wait_for(lambda: self._todo or self._closing)
                if not self._todo:
                    return
                job = self._todo.popleft()
                self._busy = True
            try:
                job()
            finally:
                with self._queue_changed:
                    self._busy = False
                    self._queue_changed.notify_all()

    def _record(self, manifest: Manifest) -> None:
        try:
            self._committer.record(manifest)
        except Exception as error:  # kept, tried again by `drain`, and raised there
            logger.warning("cannot publish %s: %s", manifest.checkpoint, error)
            with self._queue_changed:
                self._failed[manifest.checkpoint] = (manifest, error)
        else:
            with self._queue_changed:
                self._failed.pop(manifest.checkpoint, None)

    def _record_failed(self) -> None:
        with self._queue_changed:
            failed = [manifest for manifest, _ in self._failed.values()]
        for manifest in failed:
            self._record(manifest)

    def _discard(self, attempts: list[tuple[str, str]]) -> None:
        try:
            for checkpoint, attempt in attempts:
                self._committer.discard_attempt(checkpoint, attempt)
        except Exception as error:  # what is left is swept when the run ends
            logger.warning("cannot remove staged %s: %s", attempts, error)

    def _retire_all_due(self) -> None:
        while True:
            with self._queue_changed:
                if not self._due:
                    return
                checkpoint = self._retiring = self._due.pop()
            try:
                self._committer.retire(checkpoint)
            except Exception as error:  # an old checkpoint stays: no loss, but say so
                logger.warning("cannot delete %s: %s", checkpoint, error)
            finally:
                with self._queue_changed:
                    self._failed.pop(checkpoint, None)  # nobody wants it recorded any more
                    self._retiring = ""
                    self._queue_changed.notify_all()
