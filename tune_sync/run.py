"""A run: the driver's hold on one experiment directory, from lease to last delete."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tune_sync import layout
from tune_sync.behind.behind import Behind, Nodes
from tune_sync.buckets.url import BucketUrl
from tune_sync.destination import parse_destination
from tune_sync.errors import (
    AskedTwiceError,
    ExperimentExistsError,
    ImmutableError,
    LeaseLostError,
    NotStoredError,
    StoreError,
)
from tune_sync.homes.bucket.site import BucketSite
from tune_sync.homes.lease import TIDYING, Holder, in_use
from tune_sync.homes.recorded import Recovery
from tune_sync.homes.saved_state import saved_trials
from tune_sync.homes.sites import LocalSite, Site
from tune_sync.publisher import Publisher
from tune_sync.sending.orders import AT
from tune_sync.watched import WatchedCommitter, Watcher

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# Runs of this process that hold a lease, by owner; those not begun may be replaced by a new
# one with the same name (a notebook cell run again).
_RUNS: dict[str, Run] = {}
_RUNS_LOCK = threading.Lock()


class Run:
    """One run's ownership of an experiment directory.

    Attributes:
        root: The experiment directory, as Ray names it.
        where: The same as a path or URL.
        owner: The run's id.
        home: The directory, as the verbs that the filesystem uses.
        publisher: Publishes what is placed; orders state and deletes.
        behind: Does that instead, once `write_behind` was called.
        refused: Checkpoints that were reported and not published, and why.
        begun: Whether training has started.
        closed: Whether the directory was given back.
        saved_trials: Ids of the trials that the saved state names, if the run resumes one.
    """

    def __init__(self, site: Site, checkpoint_depth: int, timeout_s: float) -> None:
        self.root = site.root
        self.where = site.where
        self.owner = uuid.uuid4().hex
        self.lease = site.lease(self.owner)
        self.home = site.home(self.owner, checkpoint_depth)
        self.lease.acquire(may_take=_not_begun_here)
        self.behind: Behind | None = None
        self._watched = WatchedCommitter(self.home.committer)
        self.publisher = Publisher(self._watched, site.where)
        self._latest: dict[str, tuple[str, frozenset[str]]] = {}
        self._timeout_s = timeout_s
        self.refused: dict[str, Exception] = {}
        self._published_early: set[str] = set()
        self._taken: set[str] = set()
        self.begun = False
        self.closed = False
        self.saved_trials: frozenset[str] = frozenset()

    @classmethod
    def open(
        cls, root: Path | Site, on_existing: str, timeout_s: float, checkpoint_depth: int,
        finish_earlier: Callable[[], None] = lambda: None, ways_out: str = "",
    ) -> Run:  # fmt: skip
        """Take an experiment directory.

        Args:
            root: The experiment directory, of this machine or of a bucket.
            on_existing: If an experiment is there: "error", "move_aside" or "resume".
            timeout_s: See `SyncConfig.sync_timeout`.
            checkpoint_depth: See `layout.classify`.
            finish_earlier: Before a run is resumed: has the nodes send what they had staged for it.
            ways_out: What to do about an experiment that is there; see `new_run.ways_out`.

        Raises:
            ExperimentExistsError: There is one, and `on_existing` is "error".
            DamagedError: There is one to resume, and its state cannot be read; nothing is changed.
            LeaseHeldError: Another live run has it.
            StoreError, OSError: The directory cannot be written.
        """
        site = LocalSite(root) if isinstance(root, Path) else root
        site.check()
        if on_existing != "resume":
            _make_way(site, on_existing, ways_out)
        site.prepare()
        if on_existing == "resume" and site.live_holder() is None:
            finish_earlier()
        run = cls(site, checkpoint_depth, timeout_s)
        try:
            if on_existing == "resume":  # read before anything is swept
                run.saved_trials = saved_trials(run.home, site.where)
            if on_existing == "error" and site.holds_experiment():  # it came up since we looked
                _make_way(site, on_existing, ways_out)
            run.recover()
        except BaseException:
            run.give_back()
            raise
        with _RUNS_LOCK:
            replaced = [r for r in _RUNS.values() if r.where == run.where]
            _RUNS[run.owner] = run
        for other in replaced:
            other.give_back()
        return run

    def recover(self) -> None:
        """Publish what earlier runs have left in staging, or drop it. Before training begins."""
        _log_recovery(self.where, self.home.committer.recover())
        if self.home.in_place:
            self._taken = set(self.home.published_keys())

    def publish(
        self, checkpoint: str, strict: bool, attempts: Collection[str],
        metrics: dict[str, Any] | None = None,
    ) -> tuple[tuple[str, int, int], ...]:  # fmt: skip
        """Make a checkpoint visible now, and record it in the background; see `Committer.place`.

        Raises:
            AskedTwiceError: It is the trial's latest, and was published from these attempts.
            ImmutableError: A checkpoint of that name is published.
        """
        if attempts and self._published_early.issuperset(attempts):
            self._published_early.difference_update(attempts)
            return ()
        trial = layout.parent(checkpoint)
        latest, published_from = self._latest.get(trial, ("", frozenset()))
        if latest == checkpoint and published_from.issuperset(attempts):
            raise AskedTwiceError(f"{checkpoint} is published already; it counts once")
        is_staged = any(AT in attempt for attempt in attempts)
        if not is_staged:
            self.publisher.wait_for(checkpoint)
        if self._is_published(checkpoint, is_staged):
            raise ImmutableError(
                f"{checkpoint} is published and never changes; what was now reported under that "
                "name is not stored: choose another trial_dirname_creator, or another name for the "
                "experiment"
            )
        if self.behind is not None and is_staged:
            self.behind.accept(checkpoint, strict, attempts, metrics)
            self.note_latest(checkpoint, attempts)
            return ()
        self.publisher.keep(checkpoint)
        placed = self.home.committer.place(
            checkpoint, strict=strict, attempts=attempts, metrics=metrics
        )
        self.note_latest(checkpoint, attempts)
        self._taken.add(checkpoint)
        record_later = self.behind.accept_placed if self.behind else self.publisher.record_later
        record_later(placed.manifest)
        conflicts: tuple[tuple[str, int, int], ...] = placed.conflicts
        return conflicts

    def watch(self, watcher: Watcher) -> None:
        """Tell a second place of results of all that happens from now on."""
        self._watched.watcher = watcher

    def state_written(self) -> None:
        """Tell that a state file was written; see `Publisher.state_written`."""
        self.publisher.state_written()
        if self._watched.watcher is not None:
            self._watched.watcher.state_written()

    def note_latest(self, checkpoint: str, attempts: Collection[str] = ()) -> None:
        """Note a published checkpoint: its trial's latest, unless a later one is known."""
        trial = layout.parent(checkpoint)
        known = self.latest(trial)
        if layout.by_age(checkpoint) > layout.by_age(known):
            self._latest[trial] = (checkpoint, frozenset(attempts))

    def latest(self, trial: str) -> str:
        """The latest published checkpoint of a trial's directory that this run knows, or ""."""
        return self._latest.get(trial, ("", frozenset()))[0]

    def retire_later(self, checkpoint: str) -> None:
        """Delete a checkpoint once no state names it any more; never a trial's latest.

        Ray does not delete a trial's latest either: this is for whoever counts otherwise.
        """
        if self.latest(layout.parent(checkpoint)) == checkpoint:
            logger.warning("%s is the latest of its trial; it is not deleted", checkpoint)
            return
        (self.behind or self.publisher).retire_later(checkpoint)

    def is_on_its_way(self, key: str) -> bool:
        """Whether a key is that of a checkpoint that this run knows, and need not ask for."""
        return self.behind is not None and self.behind.is_known(key)

    def write_behind(self, nodes: Nodes) -> None:
        """From here on checkpoints may be staged on the nodes that wrote them."""
        self.behind = Behind(self.home, self.publisher, nodes, self.check_lease)

    def publish_early(
        self, checkpoint: str, strict: bool, attempts: Collection[str],
        metrics: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """`publish`, if one of these attempts is still in staging. Someone is about to load it."""
        if self.behind is not None and any(AT in attempt for attempt in attempts):
            if not self.behind.is_known(checkpoint):
                self.publish(checkpoint, strict, attempts, metrics)
                self._published_early.update(attempts)
        elif self._is_staged(checkpoint, attempts):
            self.publish(checkpoint, strict, attempts, metrics)
            self._published_early.update(attempts)
        if self.behind is not None:
            self.behind.hurry(checkpoint)

    def discard_staged(self, trial: str) -> None:
        """Drop, in the background, what a trial whose writers are gone has in staging.

        A bucket is not asked in the control loop: what is left there is swept when the run ends.
        """
        if not self.home.in_place and self.behind is None:  # else it may be sent from elsewhere
            self.publisher.discard_later(self.home.committer.attempts(trial))

    def flush(self, timeout_s: float) -> None:
        """Publish all that is placed and apply the deletes.

        Raises:
            NotStoredError: Something that was reported is not published; names it and why.
            SyncTimeoutError: It took longer than `timeout_s`.
        """
        if self.behind is not None:
            self.behind.flush(timeout_s)
        self.publisher.flush(timeout_s)
        if self._watched.watcher is not None:
            self._watched.watcher.flush()
        if self.refused:
            raise NotStoredError("; ".join(f"{c}: {e}" for c, e in self.refused.items()))

    def close(self) -> None:
        """Sweep what is left in staging, and give the directory back. May be called twice.

        If nodes have something that is not stored, they go on sending it; the next run finds it.
        """
        if self.closed:
            return
        is_all_sent = self.behind is None or self.behind.is_all_stored
        try:
            if self._end() and is_all_sent:
                self.lease.check()  # staging of a run that took over is not ours to sweep
                _log_forgotten(self.where, self.home.committer.sweep())
        except (LeaseLostError, StoreError) as error:  # the next start sweeps it
            logger.warning("%s", error)
        finally:
            if is_all_sent:
                self.lease.release()
            else:
                self.lease.leave()

    def give_back(self) -> None:
        """End a run that did not begin, and leave the directory as it is."""
        if not self.closed:
            self._end()
            self.lease.hand_back()

    def check_lease(self) -> None:
        """The fence, for the control loop: makes no request."""
        check_known = getattr(self.lease, "check_known", None)
        (check_known or self.lease.check)()

    def note_refused(self) -> None:
        """Tell of what was placed and turned out to be refused. Makes no request."""
        for checkpoint, error in self.publisher.refused().items():
            path = f"{self.root}/{checkpoint}"
            if path not in self.refused:
                self.refused[path] = error
                logger.error("%s is not stored, and fit() will fail: %s", path, error)

    def _is_published(self, checkpoint: str, is_staged: bool) -> bool:
        if self.behind is not None and (is_staged or self.behind.is_known(checkpoint)):
            return self.behind.is_known(checkpoint)  # no request, whether it answers or not
        if self.home.in_place:  # no request from the control loop; nobody else publishes
            return checkpoint in self._taken
        return self.home.info(layout.manifest_key(checkpoint)) is not None

    def _is_staged(self, checkpoint: str, attempts: Collection[str]) -> bool:
        if self.home.in_place:
            return bool(attempts) and checkpoint not in self._taken
        staged = self.home.committer.attempts(layout.parent(checkpoint))
        return any(key == checkpoint and attempt in attempts for key, attempt in staged)

    def _end(self) -> bool:
        self.closed = True
        with _RUNS_LOCK:
            _RUNS.pop(self.owner, None)
        if self.behind is not None:
            self.behind.close(self._timeout_s)
        if self._watched.watcher is not None:
            self._watched.watcher.close()
        return self.publisher.close(self._timeout_s)


def cleanup(path: str | Path) -> Recovery:
    """Complete or drop what a crashed run left half done in an experiment directory.

    A restore does the same by itself; this is for directories that are only read.

    Args:
        path: The experiment directory, on this machine, or its URL (`file://` is a directory).

    Returns:
        Which checkpoints were completed, and which were dropped.

    Raises:
        FileNotFoundError: It is not there.
        ConfigError: Another version of tune_sync wrote it, or this is no URL that can be read.
        LeaseHeldError: A live run owns it.
    """
    site = _site_at(path)
    if not site.is_ours():
        if not site.home("", 1).list("", False) and isinstance(site, BucketSite):
            raise FileNotFoundError(f"nothing is in {site.where}; give the experiment's URL")
        return Recovery((), ())  # nothing of ours is there
    lease = site.lease(f"{TIDYING}{uuid.uuid4().hex}")
    lease.acquire()
    try:
        recovery: Recovery = site.home("", 1).committer.recover()
        return recovery
    finally:
        lease.hand_back()


def _site_at(path: str | Path) -> Site:
    place = parse_destination(path)
    if place.scheme:
        return BucketSite(BucketUrl(place.scheme, place.path))
    root = Path(place.path)
    if not root.is_dir():
        raise FileNotFoundError(
            f"{root} is not a directory; give the experiment's directory, or its URL, as in "
            "s3://bucket/path/exp"
        )
    return LocalSite(root)


def _make_way(site: Site, on_existing: str, ways_out: str) -> None:
    if not site.holds_experiment():
        return
    root, holder = site.where, site.live_holder()
    if holder is not None and not _not_begun_here(holder):
        raise in_use(root, holder, holder.age_s(time.time()))
    if on_existing == "error":
        default = f'resume it with tune.Tuner.restore("{{where}}", trainable=...), {site.ways_out}'
        ways = (ways_out or default).replace("{where}", str(root))
        raise ExperimentExistsError(f"an experiment is already in {root}; {ways}")
    logger.warning("moved the earlier experiment %s aside to %s", root, site.move_aside(holder))


def _not_begun_here(holder: Holder) -> bool:
    """Whether the holder is a Tuner of this process that was never started."""
    with _RUNS_LOCK:
        run = _RUNS.get(holder.owner)
    return run is not None and not run.begun


def _log_recovery(root: str, recovery: Recovery) -> None:
    if recovery.completed:
        logger.warning("%s: finished publishing %s", root, ", ".join(recovery.completed))
    if recovery.dropped:
        logger.warning("%s: dropped incomplete %s", root, ", ".join(recovery.dropped))
    _log_forgotten(root, recovery)


def _log_forgotten(root: str, recovery: Recovery) -> None:
    if recovery.forgotten:
        logger.warning(
            "%s: %s had been published, and what it held was removed, not by tune_sync; it does "
            "not count any more, and its name is free",
            root, ", ".join(recovery.forgotten),
        )  # fmt: skip
