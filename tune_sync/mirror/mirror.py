"""`Mirror`: keeps a second place of results, which only a user's syncer reaches, up with home.

A thread of the driver works in rounds. In each it looks at what is at home at one moment, and
sends, in this order:

1. the directories of checkpoints that are published there and not at the mirror;
2. their manifests;
3. the state of that moment, which names no other checkpoints (twice: see `mirror.state`);

and then it deletes at the mirror what was deleted at home before that moment. So whatever the
moment, the state at the mirror names only checkpoints that are wholly there. What changes
meanwhile is for the next round: it goes from the newest to the newest and skips what is between.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from tune_sync import layout
from tune_sync.errors import (
    ConfigError,
    ExperimentExistsError,
    LeaseLostError,
    NotStoredError,
    StoreError,
)
from tune_sync.homes.digests import digest_of_file
from tune_sync.homes.store import LocalStore
from tune_sync.mirror.files import KnownFiles, Signature
from tune_sync.mirror.outbox import BACKOFF_S, SAY_MEANWHILE_S, SAY_S, Outbox, Parcel
from tune_sync.mirror.plan import MirrorCut, MirrorPlan
from tune_sync.mirror.record import RECORD_KEY, MirrorRecord, load_record, save_record
from tune_sync.mirror.state import LIST_NAME, STATE_DIR, list_json
from tune_sync.syncers.base import Syncer

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

LONGEST_BACKOFF_S = 60.0
# How often the end of a run tries again what fails.
LAST_ROUNDS = 2
# Added to the syncer's own time limit, so that its error comes first.
GRACE_S = 60.0
NAMED_COUNT = 5


class Mirror:
    """One run's mirror. Methods may be called from any thread, after `begin`.

    Args:
        root: The experiment directory.
        remote: The directory that mirrors it, as the syncer names it.
        syncer: The user's.
        period_s: Seconds between two syncs of what trials write beside checkpoints.
        stall_s: Seconds without progress after which `flush` gives up.
        fence: Raises LeaseLostError if the run may no longer write.
        backoff_s: Seconds before a retry.
    """

    def __init__(
        self, root: Path, remote: str, syncer: Syncer, period_s: float, stall_s: float,
        fence: Callable[[], None] = lambda: None, backoff_s: float = BACKOFF_S,
    ) -> None:  # fmt: skip
        self._root = root
        self._remote = remote
        self._syncer = syncer
        self._period_s = period_s
        self._stall_s = max(stall_s, getattr(syncer, "sync_timeout", 0)) + GRACE_S
        self._fence = fence
        self._backoff_s = backoff_s
        self._store = LocalStore(root)
        self._outbox = Outbox(root, remote, syncer, self._note_progress, backoff_s)
        self._files = KnownFiles(root)
        self._digests: dict[str, str] = {}
        self._beside: dict[str, str] | None = None
        self._files_due_s = time.monotonic() + period_s
        self._record = MirrorRecord("", remote)
        self._plan = MirrorPlan(())
        self._changed = threading.Condition()
        self._is_dirty = True
        self._asked_count = 0
        self._done_count = 0
        self._failed_count = 0
        self._progress_s = time.monotonic()
        self._error: Exception | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="tune_sync-mirror", daemon=True)

    def begin(self, published: Iterable[str]) -> None:
        """Look whether the place is free, mark it, and start. Call it before training.

        Args:
            published: What is published at home.

        Raises:
            ExperimentExistsError: Another experiment is there.
            ConfigError: The syncer cannot work here, as its program is not there.
            StoreError: Nothing can be sent there, or fetched back.
        """
        is_new = self._store.info(RECORD_KEY) is None
        self._record = load_record(self._store, self._remote)
        self._refuse_others(self._outbox.visible_marks())  # before anything is sent
        self._plan = MirrorPlan(published, self._record.touched, self._record.whole)
        self._save_record()
        try:
            self._claim()
        except ConfigError:  # as of a program that is not there: nothing was sent
            raise
        except Exception:
            if is_new:
                self._outbox.give_back(self._record.experiment)
            raise
        self._outbox.say_every_s = SAY_MEANWHILE_S
        self._thread.start()

    def _claim(self) -> None:
        """Of two experiments that begin here, one at least sees the mark of the other."""
        own = self._record.experiment
        self._send_mark(self._outbox.claim)
        try:
            there = self._outbox.marks()
        except Exception as error:
            raise StoreError(
                f"what was sent to {self._remote} cannot be fetched: {error}; correct the syncer's "
                "download, without which nobody sees whether another experiment is there"
            ) from error
        self._refuse_others(there)
        if own not in there:
            raise StoreError(
                f"what was sent to {self._remote} did not come back when it was fetched; correct "
                "the syncer: its download has to fetch what its upload has put there"
            )
        self._send_mark(self._outbox.send_mark)

    def _send_mark(self, send: Callable[[str], None]) -> None:
        try:
            send(self._record.experiment)
        except ConfigError:
            raise
        except Exception as error:
            raise StoreError(
                f"nothing can be sent to {self._remote}: {error}; correct the syncer or upload_dir"
            ) from error

    def _refuse_others(self, there: set[str]) -> None:
        if there - {self._record.experiment}:
            raise ExperimentExistsError(
                f"another experiment is already in {self._remote}; choose another name, or bring "
                f'that one here with tune_sync.fetch_experiment("{self._remote}", path, syncer) '
                "and restore it"
            )

    # What the run tells; see `watched.Watcher`

    def recorded(self, checkpoint: str) -> None:
        """See `Watcher.recorded`."""
        with self._changed:
            self._plan.recorded(checkpoint)
            self._wake()

    def retiring(self, checkpoint: str) -> None:
        """See `Watcher.retiring`: not while it is being sent."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._plan.may_retire(checkpoint))
            self._plan.retired(checkpoint)
            self._wake()

    def state_written(self) -> None:
        """See `Watcher.state_written`."""
        with self._changed:
            self._wake()

    def flush(self) -> None:
        """See `Watcher.flush`."""
        self._outbox.say_every_s = SAY_S
        with self._changed:
            self._asked_count += 1
            self._wake()
            asked, allowed = self._asked_count, self._failed_count + LAST_ROUNDS
            self._progress_s = time.monotonic()
            while self._done_count < asked and self._failed_count < allowed and self._is_moving():
                self._changed.wait(1.0)
            if self._done_count < asked:
                raise NotStoredError(self._what_is_missing())

    def close(self) -> None:
        """See `Watcher.close`."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(self._backoff_s)
        if self._thread.is_alive():
            return
        try:
            self._syncer.close()
        except Exception as error:  # all that matters is there by now, or was missed by `flush`
            logger.warning("%s.close() failed: %s", type(self._syncer).__name__, error)

    # The thread

    def _work(self) -> None:
        backoff_s = self._backoff_s
        while True:
            with self._changed:
                self._changed.wait_for(self._is_due, max(0.0, self._files_due_s - time.monotonic()))
                if self._closed:
                    return
                self._is_dirty = False
                asked = self._asked_count
            error = self._try_round(asked > self._done_count)
            backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S) if error else self._backoff_s
            with self._changed:
                self._note_round(asked, error)
                if isinstance(error, LeaseLostError):
                    return
                if error:
                    self._changed.wait_for(lambda: self._closed or self._is_asked(), backoff_s)

    def _try_round(self, with_files: bool) -> Exception | None:
        try:
            self._round()
            if with_files or time.monotonic() >= self._files_due_s:
                next_s = time.monotonic() + self._period_s
                self._send(self._files.new_trial_files())
                self._files_due_s = next_s
        except Exception as error:  # tried again, and raised by `flush`
            if not self._closed:
                logger.warning("%s is behind %s: %s", self._remote, self._root, error)
            return error
        return None

    def _round(self) -> None:
        with self._changed:
            self._plan.hold()
        try:
            with self._outbox.parcel() as parcel:
                state = self._files.new_state()
                for key in state:
                    parcel.add(key, key)
                with self._changed:
                    cut = self._plan.cut()
                self._send_checkpoints(cut)
                if state:
                    self._send_state(parcel)
                    self._files.sent(state)
            self._delete(cut)
        finally:
            with self._changed:
                self._plan.release()
                self._changed.notify_all()

    def _send_checkpoints(self, cut: MirrorCut) -> None:
        if not cut.send:
            return
        with self._changed:
            self._plan.begun(cut.send)
        self._save_record()
        failed: dict[str, Exception] = {}
        with self._outbox.parcel() as manifests:
            for checkpoint in cut.send:
                try:
                    self._send_checkpoint(checkpoint, manifests)
                except LeaseLostError:
                    raise
                except Exception as error:  # the others go on
                    failed[checkpoint] = error
            if manifests.keys:
                self._outbox.send_parcel(manifests, layout.MANIFESTS_DIR)
        with self._changed:
            self._plan.sent(set(cut.send) - failed.keys())
        self._save_record()
        if failed:
            raise StoreError("; ".join(f"{c}: {e}" for c, e in _first(failed).items()))

    def _send_checkpoint(self, checkpoint: str, manifests: Parcel) -> None:
        self._go_on()
        key = layout.manifest_key(checkpoint)
        is_there = self._store.info(key) is not None
        if is_there:
            self._outbox.send_directory(checkpoint)
            manifests.add(key, key.removeprefix(layout.MANIFESTS_DIR + "/"))
        with self._changed:
            if not is_there:  # deleted by a trial, of which only the home agent heard
                self._plan.retired(checkpoint)
            self._plan.copied(checkpoint)
            self._changed.notify_all()

    def _send_state(self, parcel: Parcel) -> None:
        """Into a directory of ours first; see `mirror.state`."""
        self._go_on()
        self._digests |= {key: digest_of_file(parcel.path / key) for key in parcel.keys}
        if self._digests != self._beside:  # sent again it could be cut off, with nothing else whole
            self._beside = None
            parcel.add_bytes(LIST_NAME, list_json(self._digests))
            self._outbox.send_parcel(parcel, STATE_DIR)
            (parcel.path / LIST_NAME).unlink()
            self._beside = dict(self._digests)
        self._outbox.send_parcel(parcel)

    def _send(self, files: dict[str, Signature]) -> None:
        """Send what trials have written. A file that was replaced meanwhile goes the next time."""
        self._go_on()
        with self._outbox.parcel() as parcel:
            there = {key: version for key, version in files.items() if parcel.add(key, key)}
            if there:
                self._outbox.send_parcel(parcel)
        self._files.sent(there)

    def _delete(self, cut: MirrorCut) -> None:
        for checkpoint in cut.delete:
            self._go_on()
            try:
                self._outbox.delete(checkpoint)
            except Exception as error:  # an old checkpoint stays: no loss, but say so
                logger.warning("cannot delete %s in %s: %s", checkpoint, self._remote, error)
                continue
            with self._changed:
                self._plan.deleted(checkpoint)
        if cut.delete:
            self._save_record()

    def _go_on(self) -> None:
        self._fence()
        if self._closed:
            raise StoreError("the run has ended")

    def _save_record(self) -> None:
        with self._changed:
            touched, whole = sorted(self._plan.touched), sorted(self._plan.whole)
        self._record = replace(self._record, touched=tuple(touched), whole=tuple(whole))
        save_record(self._store, self._record)

    # Inside; with `_changed`

    def _wake(self) -> None:
        self._is_dirty = True
        self._changed.notify_all()

    def _is_due(self) -> bool:
        return self._is_dirty or self._closed or time.monotonic() >= self._files_due_s

    def _is_asked(self) -> bool:
        return self._asked_count > self._done_count

    def _is_moving(self) -> bool:
        is_stalled = time.monotonic() - self._progress_s > self._stall_s
        return self._thread.is_alive() and not is_stalled

    def _note_progress(self) -> None:
        with self._changed:
            self._progress_s = time.monotonic()

    def _note_round(self, asked_count: int, error: Exception | None) -> None:
        self._error = error
        if error is None:
            self._done_count = asked_count
        else:
            self._failed_count += 1
            self._is_dirty = True
        self._changed.notify_all()

    def _what_is_missing(self) -> str:
        unsent = self._plan.unsent()
        named = ", ".join(unsent[:NAMED_COUNT]) or "the newest state, or files of trials"
        more = f" and {len(unsent) - NAMED_COUNT} more" if len(unsent) > NAMED_COUNT else ""
        why = self._error or f"nothing was sent for {self._stall_s:.0f} s"
        return (
            f"{self._remote} is behind: {named}{more} not there: {why}; all is in {self._root}, "
            "and a restore from there sends the rest"
        )


def _first(failed: Mapping[str, Exception]) -> dict[str, Exception]:
    return dict(list(failed.items())[:NAMED_COUNT])
