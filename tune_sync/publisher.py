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
from typing import Protocol

from tune_sync.errors import FixCallError, NotStoredError, SyncTimeoutError
from tune_sync.manifest import Manifest
from tune_sync.worker import Worker

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

STATE_WRITES_BEFORE_DELETE = 2


class Committer(Protocol):
    """What is needed of `commit.Committer`."""

    def record(self, manifest: Manifest) -> None:
        """Publish a placed checkpoint."""

    def retire(self, checkpoint: str) -> None:
        """Delete a checkpoint."""

    def discard_attempt(self, checkpoint: str, attempt: str) -> None:
        """Drop one attempt."""


class Publisher:
    """The background work of one run's driver. Methods may be called from any thread.

    Records and deletes have a thread each: state waits for records, never for a large delete.

    Args:
        committer: Does the work.
        where: The experiment's directory or URL, for messages.
    """

    def __init__(self, committer: Committer, where: str = "the experiment's directory") -> None:
        self._committer = committer
        self._where = where
        self._records = Worker("tune_sync-publish")
        self._deletes = Worker("tune_sync-delete")
        self._doomed: dict[str, int] = {}
        self._due: set[str] = set()
        self._retiring = ""
        self._recording: dict[str, Manifest] = {}
        self._failed: dict[str, tuple[Manifest, Exception]] = {}
        self._names_changed = threading.Condition()

    def record_later(self, manifest: Manifest) -> None:
        """Record a placed checkpoint soon. Returns at once."""
        with self._names_changed:
            self._recording[manifest.checkpoint] = manifest
        self._records.add(lambda: self._record(manifest))

    def wait_for(self, checkpoint: str) -> None:
        """Wait while a checkpoint of that name is being recorded or deleted."""
        with self._names_changed:
            self._names_changed.wait_for(
                lambda: self._retiring != checkpoint and checkpoint not in self._recording
            )

    def keep(self, checkpoint: str) -> None:
        """`wait_for`, and take back a delete: the name is used again. Call it before `place`."""
        with self._names_changed:
            self._doomed.pop(checkpoint, None)
            self._due.discard(checkpoint)
        self.wait_for(checkpoint)

    def retire_later(self, checkpoint: str) -> None:
        """Delete a checkpoint once no state names it any more. Returns at once."""
        with self._names_changed:
            self._doomed.setdefault(checkpoint, 0)

    def retire_now(self, checkpoint: str) -> None:
        """Delete a checkpoint that no state names. Returns at once."""
        with self._names_changed:
            self._doomed.pop(checkpoint, None)
            self._due.add(checkpoint)
        self._deletes.add(self._retire_all_due)

    def discard_later(self, attempts: list[tuple[str, str]]) -> None:
        """Drop attempts `(checkpoint, attempt)` whose writer is gone. Returns at once."""
        if attempts:
            self._deletes.add(lambda: self._discard(attempts))

    def state_written(self) -> None:
        """Tell that a state file was written: deletes asked for long enough before it can go."""
        with self._names_changed:
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
            self._records.add(self._record_failed)
        left_count = self._records.wait(timeout_s)
        if left_count:
            raise SyncTimeoutError(
                f"{left_count} checkpoints are still being published after {timeout_s:.0f} s; "
                f"does {self._where} answer? Restore the run once it does"
            )
        with self._names_changed:
            if self._failed:
                raise NotStoredError("; ".join(f"{c}: {e}" for c, (_, e) in self._failed.items()))

    def refused(self) -> dict[str, Exception]:
        """What can never be recorded as it was reported, and why. Does not block."""
        with self._names_changed:
            found = [(c, e) for c, (_, e) in self._failed.items()]
        return {c: error for c, error in found if isinstance(error, FixCallError)}

    def flush(self, timeout_s: float) -> None:
        """Apply the deletes that the last state no longer names, then `settle`."""
        self._retire_due(1)
        self.settle(timeout_s)

    def settle(self, timeout_s: float) -> None:
        """`drain`, and wait for the deletes that are due."""
        left_count = self._deletes.wait(timeout_s)
        if left_count:
            logger.warning("deletes are not done after %.0f s; the rest stays", timeout_s)
        self.drain(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """End the threads after what is queued; returns whether they ended in time."""
        recorded = self._records.close(timeout_s)
        return self._deletes.close(timeout_s) and recorded

    def _retire_due(self, state_writes: int) -> None:
        with self._names_changed:
            due = [c for c, count in self._doomed.items() if count >= state_writes]
            for checkpoint in due:
                del self._doomed[checkpoint]
                self._due.add(checkpoint)
        if due:
            self._deletes.add(self._retire_all_due)

    def _record(self, manifest: Manifest) -> None:
        try:
            self._committer.record(manifest)
        except Exception as error:  # kept, tried again by `drain`, and raised there
            logger.warning("cannot publish %s: %s", manifest.checkpoint, error)
            with self._names_changed:
                self._failed[manifest.checkpoint] = (manifest, error)
        else:
            with self._names_changed:
                self._failed.pop(manifest.checkpoint, None)
        with self._names_changed:
            self._recording.pop(manifest.checkpoint, None)
            self._names_changed.notify_all()

    def _record_failed(self) -> None:
        with self._names_changed:
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
            with self._names_changed:
                if not self._due:
                    return
                checkpoint = self._retiring = self._due.pop()
            try:
                self._committer.retire(checkpoint)
            except Exception as error:  # an old checkpoint stays: no loss, but say so
                logger.warning("cannot delete %s: %s", checkpoint, error)
            finally:
                with self._names_changed:
                    self._failed.pop(checkpoint, None)  # nobody wants it recorded any more
                    self._retiring = ""
                    self._names_changed.notify_all()
