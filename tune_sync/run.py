"""A run: the driver's hold on one experiment directory, from lease to last delete."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tune_sync import layout
from tune_sync.commit import Committer, Recovery
from tune_sync.errors import (
    ConfigError,
    DamagedError,
    ExperimentExistsError,
    ImmutableError,
    LeaseHeldError,
    LeaseLostError,
    NotStoredError,
)
from tune_sync.home import LocalHome
from tune_sync.lease import Holder, Lease, is_live
from tune_sync.manifest import FORMAT_VERSION
from tune_sync.publisher import Publisher
from tune_sync.store import LocalStore

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# Runs of this process that hold a lease, by owner; those not begun may be replaced by a new
# one with the same name (a notebook cell run again).
_RUNS: dict[str, Run] = {}
_RUNS_LOCK = threading.Lock()


class AskedTwiceError(ImmutableError):
    """Ray saved one report twice, and asks to publish it again. Nothing is lost."""


class Run:
    """One run's ownership of an experiment directory.

    Attributes:
        root: The experiment directory.
        owner: The run's id.
        home: The directory, as the verbs that the filesystem uses.
        publisher: Publishes what is placed; orders state and deletes.
        refused: Checkpoints that were reported and not published, and why.
        begun: Whether training has started.
        closed: Whether the directory was given back.
    """

    def __init__(self, root: Path, checkpoint_depth: int, timeout_s: float) -> None:
        self.root = root
        self.owner = uuid.uuid4().hex
        self.lease = Lease(root, self.owner)
        self.home = LocalHome(root, self.owner, checkpoint_depth)
        self.lease.acquire(may_take=_not_begun_here)
        self.publisher = Publisher(self.home.committer)
        self._latest: dict[str, tuple[str, frozenset[str]]] = {}
        self._timeout_s = timeout_s
        self.refused: dict[str, Exception] = {}
        self._published_early: set[str] = set()
        self.begun = False
        self.closed = False

    @classmethod
    def open(cls, root: Path, on_existing: str, timeout_s: float, checkpoint_depth: int) -> Run:
        """Take an experiment directory.

        Args:
            root: The experiment directory.
            on_existing: If an experiment is there: "error", "move_aside" or "resume".
            timeout_s: See `SyncConfig.sync_timeout`.
            checkpoint_depth: See `layout.classify`.

        Raises:
            ExperimentExistsError: There is one, and `on_existing` is "error".
            LeaseHeldError: Another live run has it.
            StoreFullError, OSError: The directory cannot be written.
        """
        if on_existing != "resume":
            _make_way(root, on_existing)
        LocalStore(root).make_dir(layout.INTERNAL_DIR)
        _check_format(root)
        run = cls(root, checkpoint_depth, timeout_s)
        try:
            if on_existing == "error" and holds_experiment(root):  # it came up since we looked
                _make_way(root, on_existing)
            _log_recovery(root, run.home.committer.recover())
        except BaseException:
            run.give_back()
            raise
        with _RUNS_LOCK:
            replaced = [r for r in _RUNS.values() if r.root == root]
            _RUNS[run.owner] = run
        for other in replaced:
            other.give_back()
        return run

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
        self.publisher.keep(checkpoint)
        if self.home.info(layout.manifest_key(checkpoint)) is not None:
            raise ImmutableError(
                f"{checkpoint} is published and never changes; what was now reported under that "
                "name is not stored: restore the experiment to go on from what is"
            )
        placed = self.home.committer.place(
            checkpoint, strict=strict, attempts=attempts, metrics=metrics
        )
        self.note_latest(checkpoint, attempts)
        self.publisher.record_later(placed.manifest)
        return placed.conflicts

    def note_latest(self, checkpoint: str, attempts: Collection[str] = ()) -> None:
        """Note a published checkpoint: its trial's latest, unless a later one is known."""
        trial = layout.parent(checkpoint)
        known = self.latest(trial)
        if (len(checkpoint), checkpoint) > (len(known), known):
            self._latest[trial] = (checkpoint, frozenset(attempts))

    def latest(self, trial: str) -> str:
        """The latest published checkpoint of a trial's directory that this run knows, or ""."""
        return self._latest.get(trial, ("", frozenset()))[0]

    def retire_later(self, checkpoint: str) -> None:
        """Delete a checkpoint once no state names it any more; never a trial's latest.

        Ray does not delete a trial's latest. But if it refused one before, it may use a number
        twice, and mean the older when it deletes.
        """
        if self.latest(layout.parent(checkpoint)) == checkpoint:
            logger.warning("%s is the latest of its trial; it is not deleted", checkpoint)
            return
        self.publisher.retire_later(checkpoint)

    def publish_early(
        self, checkpoint: str, strict: bool, attempts: Collection[str],
        metrics: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """`publish`, if one of these attempts is still in staging."""
        staged = self.home.committer.attempts(layout.parent(checkpoint))
        if any(key == checkpoint and attempt in attempts for key, attempt in staged):
            self.publish(checkpoint, strict, attempts, metrics)
            self._published_early.update(attempts)

    def flush(self, timeout_s: float) -> None:
        """Publish all that is placed and apply the deletes.

        Raises:
            NotStoredError: Something that was reported is not published; names it and why.
            SyncTimeoutError: It took longer than `timeout_s`.
        """
        self.publisher.flush(timeout_s)
        if self.refused:
            raise NotStoredError("; ".join(f"{c}: {e}" for c, e in self.refused.items()))

    def close(self) -> None:
        """Sweep what is left in staging, and give the directory back. May be called twice."""
        if self.closed:
            return
        try:
            if self._end():
                self.lease.check()  # staging of a run that took over is not ours to sweep
                self.home.committer.recover()
        except LeaseLostError as error:
            logger.warning("%s", error)
        finally:
            self.lease.release()

    def give_back(self) -> None:
        """End a run that did not begin, and leave the directory as it is."""
        if not self.closed:
            self._end()
            self.lease.release()

    def _end(self) -> bool:
        self.closed = True
        with _RUNS_LOCK:
            _RUNS.pop(self.owner, None)
        return self.publisher.close(self._timeout_s)


def holds_experiment(root: Path) -> bool:
    """Whether an experiment ran in `root`: it has a state file, or a published checkpoint."""
    if any(root.glob("experiment_state-*.json")) or any(root.glob("trainer.pkl")):
        return True
    return any((root / layout.MANIFESTS_DIR).glob("**/*.json"))


def cleanup(path: str | Path) -> Recovery:
    """Complete or drop what a crashed run left half done in an experiment directory.

    A restore does the same by itself; this is for directories that are only read.

    Args:
        path: The experiment directory, on this machine.

    Returns:
        Which checkpoints were completed, and which were dropped.

    Raises:
        FileNotFoundError: It is not there.
        LeaseHeldError: A live run owns it.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is not a directory; give the experiment's directory")
    lease = Lease(root, uuid.uuid4().hex)
    lease.acquire()
    try:
        return Committer(LocalHome(root).store).recover()
    finally:
        lease.release()


def _make_way(root: Path, on_existing: str) -> None:
    if not holds_experiment(root):
        return
    holder = is_live(root)
    if holder is not None and not _not_begun_here(holder):
        raise LeaseHeldError(
            f"{root} is in use by a live run: process {holder.pid} on host {holder.host}, last "
            f"heard of {holder.age_s(time.time()):.0f} s ago; choose another name"
        )
    if on_existing == "error":
        raise ExperimentExistsError(
            f"an experiment is already in {root}; resume it with "
            f'tune.Tuner.restore("{root}", trainable=...), choose another name, or move it aside '
            "with tune_sync.RunConfig(overwrite=True)"
        )
    aside = root.with_name(f"{root.name}.{time.strftime('%Y%m%d-%H%M%S')}.{uuid.uuid4().hex[:4]}")
    root.rename(aside)
    logger.warning("moved the earlier experiment %s aside to %s", root, aside)


def _not_begun_here(holder: Holder) -> bool:
    """Whether the holder is a Tuner of this process that was never started."""
    with _RUNS_LOCK:
        run = _RUNS.get(holder.owner)
    return run is not None and not run.begun


def _check_format(root: Path) -> None:
    file = root / layout.FORMAT_KEY
    if not file.is_file() or not file.stat().st_size:  # a power cut may leave it empty
        store, fresh = LocalStore(root), f"{layout.FORMAT_KEY}.{uuid.uuid4().hex}"
        store.write_at(fresh, 0, json.dumps({"format_version": FORMAT_VERSION}).encode())
        store.rename(fresh, layout.FORMAT_KEY)
        return
    try:
        found = json.loads(file.read_text()).get("format_version")
    except (ValueError, AttributeError) as error:
        raise DamagedError(
            f"{file} is not readable: {error}; remove it if you trust the rest"
        ) from error
    if found != FORMAT_VERSION:
        raise ConfigError(
            f"{root} was written by a tune_sync with format version {found!r}, this one has "
            f"{FORMAT_VERSION}; install the newer tune_sync, or choose another name"
        )


def _log_recovery(root: Path, recovery: Recovery) -> None:
    if recovery.completed:
        logger.warning("%s: finished publishing %s", root, ", ".join(recovery.completed))
    if recovery.dropped:
        logger.warning("%s: dropped incomplete %s", root, ", ".join(recovery.dropped))
