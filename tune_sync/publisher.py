"""Publishes in the background what the control loop placed, in the order that keeps promises.

* A placed checkpoint is recorded (made durable, manifest written) in the background.
* State waits for `drain`: it is written after the records of what it names. What can never be
  recorded, or cannot while others can, is given up: once no state names it any more (see
  `leave_out`) none waits for it. It is tried again all the same, more rarely and at the end.
* A delete is applied only after state that no longer names the checkpoint was written. A
  snapshot may have been taken before the delete was asked for and written after it, so two
  state writes have to pass, or one once the control loop has ended (`flush`); and whoever asks
  for it may know more (`is_unnamed`): of several snapshots that wait, each may be so old.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tune_sync import layout
from tune_sync.errors import NOT_PUBLISHABLE, WRONG_IN_ITSELF, SyncTimeoutError
from tune_sync.manifest import Manifest
from tune_sync.unrecorded import Unrecorded
from tune_sync.worker import Worker

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

STATE_WRITES_BEFORE_DELETE = 2
# So many that fail in a row tell of the place they are in: it would say so of each that is left,
# after all its tries. One alone may be that one's own fault.
TOLD_BY_COUNT = 2
# How long a state waits for what was given up to be left out: Ray's control loop does that with its
# next step. If that takes longer, the state after this one is put.
LEFT_OUT_WITHIN_S = 10.0


class Recorder(Protocol):
    """What a publisher needs of a `commit.Committer`: of a disk, of a bucket, or watched."""

    def record(self, manifest: Manifest) -> None:
        """Publish a placed checkpoint."""

    def retire(self, checkpoint: str) -> None:
        """Delete a checkpoint."""

    def discard_attempt(self, checkpoint: str, attempt: str) -> None:
        """Drop one attempt."""


@dataclass(slots=True)
class Doomed:
    """A delete that was asked for.

    Attributes:
        is_unnamed, is_before: See `Publisher.retire_later`.
        writes_count: Of state, since then.
    """

    is_unnamed: Callable[[], bool]
    is_before: Callable[[int], bool]
    writes_count: int = 0


class Publisher:
    """The background work of one run's driver. Methods may be called from any thread.

    Records and deletes have threads of their own: state waits for records, never for a large
    delete.

    Args:
        committer: Does the work.
        where: The experiment's directory or URL, for messages.
        at_once: How many records, and as many deletes, are done at a time. Each takes several
            round trips in a bucket.
    """

    def __init__(
        self, committer: Recorder, where: str = "the experiment's directory", at_once: int = 1
    ) -> None:
        self._committer = committer
        self._where = where
        self._records = Worker("tune_sync-publish", at_once)
        self._deletes = Worker("tune_sync-delete", at_once)
        self._doomed: dict[str, Doomed] = {}
        self._due: dict[str, None] = {}  # in the order in which they are tried
        self._undone: dict[str, None] = {}  # deletes that failed: they are tried after later ones
        self._retiring: set[str] = set()
        self._recording: dict[str, Manifest] = {}
        self._failed = Unrecorded()
        self._is_asked = False  # whether somebody leaves out what is given up
        self._names_changed = threading.Condition()

    def record_later(self, manifest: Manifest) -> None:
        """Record a placed checkpoint soon. Returns at once."""
        with self._names_changed:
            self._recording[manifest.checkpoint] = manifest
        self._records.add(lambda: self._record(manifest))

    def wait_for(self, checkpoint: str, timeout_s: float) -> None:
        """Wait while a checkpoint of that name is being recorded or deleted.

        Raises:
            SyncTimeoutError: It took longer than `timeout_s`.
        """
        with self._names_changed:
            is_free = self._names_changed.wait_for(
                lambda: checkpoint not in self._retiring and checkpoint not in self._recording,
                timeout_s,
            )
            if not is_free:
                done = "deleted" if checkpoint in self._retiring else "published"
                raise SyncTimeoutError(
                    f"{checkpoint}: an earlier one of that name is still being {done} after "
                    f"{timeout_s:.0f} s, and what was now reported is not stored; does "
                    f"{self._where} answer? Restore the run once it does"
                )

    def keep(self, checkpoint: str, timeout_s: float) -> None:
        """`wait_for`, and take back a delete: the name is used again. Call it before `place`.

        Raises as `wait_for`.
        """
        with self._names_changed:
            doomed, was_due = self._doomed.pop(checkpoint, None), checkpoint in self._due
            self._due.pop(checkpoint, None)
            try:
                self.wait_for(checkpoint, timeout_s)
            except SyncTimeoutError:
                if doomed is not None:
                    self._doomed[checkpoint] = doomed
                if was_due:
                    self._due[checkpoint] = None
                raise
            self._undone.pop(checkpoint, None)  # also of a delete that failed meanwhile

    def spare(self, checkpoint: str) -> bool:
        """Take back a delete that has not begun; returns whether there was one."""
        with self._names_changed:
            is_due = checkpoint in self._due
            self._due.pop(checkpoint, None)
            self._undone.pop(checkpoint, None)
            return self._doomed.pop(checkpoint, None) is not None or is_due

    def is_retiring(self, checkpoint: str) -> bool:
        """Whether a checkpoint is being deleted."""
        return checkpoint in self._retiring

    def retire_later(
        self, checkpoint: str, is_unnamed: Callable[[], bool] = lambda: True,
        is_before: Callable[[int], bool] = lambda version: False,
    ) -> None:  # fmt: skip
        """Delete a checkpoint once no state names it any more. Returns at once.

        Args:
            checkpoint: Its key.
            is_unnamed: Whether the state that was written last was surely made after the delete.
            is_before: The same of a version of the state; see `Versions.made_count`.
        """
        with self._names_changed:
            self._doomed.setdefault(checkpoint, Doomed(is_unnamed, is_before))
            self._names_changed.notify_all()

    def doomed_in(self, trial: str) -> list[str]:
        """A trial's recorded checkpoints whose delete waits for state, the newest first."""
        with self._names_changed:
            lacking = self._failed.keys() | self._recording.keys()
            found = [c for c in self._doomed if layout.parent(c) == trial and c not in lacking]
        return sorted(found, key=layout.by_age, reverse=True)

    def retire_now(self, checkpoint: str) -> None:
        """Delete a checkpoint that no state names. Returns at once."""
        with self._names_changed:
            self._doomed.pop(checkpoint, None)
        self._retire_soon({checkpoint})

    def discard_later(self, attempts: list[tuple[str, str]]) -> None:
        """Drop attempts `(checkpoint, attempt)` whose writer is gone. Returns at once."""
        if attempts:
            self._deletes.add(lambda: self._discard(attempts))

    def state_written(self) -> None:
        """Tell that a state file was written: deletes asked for long enough before it can go."""
        with self._names_changed:
            for checkpoint in self._doomed:
                self._doomed[checkpoint].writes_count += 1
        self._retire_due(STATE_WRITES_BEFORE_DELETE)

    def drain(self, timeout_s: float, version: int = -1) -> None:
        """Return when all is recorded that a state may name.

        Args:
            timeout_s: Give up after so long.
            version: Of the state, see `Versions.made_count`: what Ray let go of before it was made
                is not named. -1: it is not known.

        Raises:
            NotStoredError: Something could not be recorded; names it and why.
            SyncTimeoutError: It took longer than `timeout_s`.
        """
        now_s = time.monotonic()
        with self._names_changed:
            if self._failed.due(now_s):
                self._records.add(lambda: self._record_failed(now_s))
        self._wait_for_records(timeout_s)
        with self._names_changed:
            if self._is_asked:
                self._names_changed.wait_for(
                    lambda: not self._failed.given_up() & self._holding(version), LEFT_OUT_WITHIN_S
                )
            self._failed.check(self._holding(version))

    def wait_recorded(self, timeout_s: float) -> None:
        """Return when each record was tried, or after so long."""
        self._records.wait(timeout_s)

    def given_up(self) -> frozenset[str]:
        """What state waits for in vain. Whoever asks tells soon that it is left out. Never blocks.

        It can never be recorded, or could not several times, while others could.
        """
        with self._names_changed:
            self._is_asked = True
            return self._failed.given_up()

    @property
    def left_out(self) -> frozenset[str]:
        """See `leave_out`; less what could be recorded after all."""
        return self._failed.left_out

    def leave_out(self, checkpoints: frozenset[str]) -> None:
        """Tell that no state that is put from here on names these; none waits for them."""
        with self._names_changed:
            self._failed.leave_out(checkpoints)
            self._names_changed.notify_all()

    def failed(self) -> dict[str, Exception]:
        """What was placed and could not be recorded, and why. Does not block."""
        with self._names_changed:
            return {checkpoint: found.error for checkpoint, found in self._failed.items()}

    def refused(self) -> dict[str, Exception]:
        """Of what `failed` tells, what can never be recorded as it was reported."""
        return {
            c: error for c, error in self.failed().items() if isinstance(error, WRONG_IN_ITSELF)
        }

    def try_again(self) -> None:
        """Record what could not be recorded, if that goes now. At the end, or after `close`."""
        self._record_failed()

    def flush(self, timeout_s: float) -> None:
        """Apply the deletes that the last state no longer names, then `settle`.

        The others are left to the next run.
        """
        self._retire_due(1)
        if self._doomed:
            logger.warning(
                "%s: %d checkpoints that were deleted stay, as state may name them: none was saved "
                "since; a restore deletes them",
                self._where, len(self._doomed),
            )  # fmt: skip
        self.settle(timeout_s)

    def settle(self, timeout_s: float) -> None:
        """Wait for the deletes that are due, and for all records; try again what has failed.

        Raises as `drain`, but for what Ray has let go of.
        """
        left_count = self._deletes.wait(timeout_s)
        if left_count:
            logger.warning("deletes are not done after %.0f s; the rest stays", timeout_s)
        if self._failed:
            self._records.add(self._record_failed)
        self._wait_for_records(timeout_s)
        with self._names_changed:
            self._failed.check(self._failed.keys() - self._doomed.keys())

    def close(self, timeout_s: float) -> bool:
        """End the threads after what is queued; returns whether they ended in time."""
        recorded = self._records.close(timeout_s)
        return self._deletes.close(timeout_s) and recorded

    def _retire_due(self, state_writes: int) -> None:
        with self._names_changed:
            found = self._doomed.items()
            due = {c for c, d in found if d.writes_count >= state_writes and d.is_unnamed()}
            for checkpoint in due:
                del self._doomed[checkpoint]
        self._retire_soon(due)

    def _retire_soon(self, due: set[str]) -> None:
        with self._names_changed:
            added = dict.fromkeys(due) | self._undone
            self._undone.clear()
            self._due |= added
        for _ in added:
            self._deletes.add(self._retire_all_due)

    def _wait_for_records(self, timeout_s: float) -> None:
        left_count = self._records.wait(timeout_s)
        if left_count:
            raise SyncTimeoutError(
                f"{left_count} checkpoints are still being published after {timeout_s:.0f} s; "
                f"does {self._where} answer? Restore the run once it does"
            )

    def _holding(self, version: int) -> set[str]:
        """What keeps a version of the state from being put."""
        unnamed = {c for c, doomed in self._doomed.items() if doomed.is_before(version)}
        return self._failed.keys() - self._failed.left_out - unnamed

    def _record(self, manifest: Manifest) -> None:
        checkpoint = manifest.checkpoint
        try:
            self._committer.record(manifest)
        except Exception as error:  # kept, tried again by `drain`, and raised there
            with self._names_changed:
                is_news = self._failed.failed(manifest, error, time.monotonic())
            if is_news:  # told once, however often it fails
                logger.warning("cannot publish %s: %s", checkpoint, error)
        else:
            with self._names_changed:
                self._failed.recorded(checkpoint)
        with self._names_changed:
            self._recording.pop(checkpoint, None)
            self._names_changed.notify_all()

    def _record_failed(self, now_s: float = float("inf")) -> None:
        """Try again what is due at a moment; all at the end."""
        with self._names_changed:
            failed = self._failed.due(now_s)
        in_a_row = 0
        for found in failed:
            checkpoint = found.manifest.checkpoint
            with self._names_changed:
                is_busy = checkpoint in self._retiring or checkpoint in self._recording
                if is_busy or self._failed.get(checkpoint) is not found:
                    continue  # deleted, tried just now, or placed again: it must not come back
                self._recording[checkpoint] = found.manifest
            self._record(found.manifest)
            error = self.failed().get(checkpoint)
            is_of_place = error is not None and not isinstance(error, NOT_PUBLISHABLE)
            in_a_row = in_a_row + 1 if is_of_place else 0
            if in_a_row == TOLD_BY_COUNT:
                return

    def _is_not_recorded_now(self, checkpoint: str) -> bool:
        return checkpoint not in self._recording

    def _discard(self, attempts: list[tuple[str, str]]) -> None:
        try:
            for checkpoint, attempt in attempts:
                self._committer.discard_attempt(checkpoint, attempt)
        except Exception as error:  # what is left is swept when the run ends
            logger.warning("cannot remove staged %s: %s", attempts, error)

    def _retire_all_due(self) -> None:
        in_a_row = 0
        while True:
            with self._names_changed:
                if not self._due:
                    return
                checkpoint = next(iter(self._due))
                del self._due[checkpoint]
                self._retiring.add(checkpoint)
                self._names_changed.wait_for(partial(self._is_not_recorded_now, checkpoint))
            try:
                self._committer.retire(checkpoint)
            except Exception as error:  # an old checkpoint stays for now: no loss, but say so
                logger.warning("cannot delete %s now: %s", checkpoint, error)
                in_a_row += 1
                with self._names_changed:
                    self._undone[checkpoint] = None
                    if in_a_row == TOLD_BY_COUNT:
                        self._undone |= self._due
                        self._due.clear()
            else:
                in_a_row = 0
            finally:
                with self._names_changed:
                    self._failed.forget(checkpoint)  # nobody wants it recorded any more
                    self._retiring.discard(checkpoint)
                    self._names_changed.notify_all()
