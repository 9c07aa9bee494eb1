"""A run: the driver's hold on one experiment directory, from lease to last delete."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tune_sync import layout
from tune_sync.behind.behind import Behind
from tune_sync.behind.nodes import Nodes
from tune_sync.errors import AskedTwiceError, ImmutableError, NotStoredError
from tune_sync.homes.inner_runs import recover_inner
from tune_sync.homes.recorded import newest_of
from tune_sync.homes.recovery_log import log_forgotten, log_recovery
from tune_sync.homes.saved_state import TrialNames, saved_trials
from tune_sync.homes.saved_train import go_by_record, retire_unnamed
from tune_sync.homes.sites import LocalSite, Site, exists_already, make_way, taking
from tune_sync.homes.state_records import Corrections
from tune_sync.manifest import Conflicts
from tune_sync.own_runs import OWN, Call
from tune_sync.publisher import Publisher
from tune_sync.refused import Refused, may_pass
from tune_sync.sending.backlog import Backlog
from tune_sync.sending.orders import are_on_nodes
from tune_sync.versions import Versions
from tune_sync.watched import WatchedCommitter, Watcher

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# How long who is told twice to stop waits. What is not done by then goes on while the process ends:
# there Ray alone sleeps for half a second, for its log.
LAST_MOMENT_S = 0.2
# The same of a run that was left so, when the next one begins.
LAST_WAIT_S = 1.0


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
        corrections: What is put right in state before it is written.
        versions: Which state was made after which delete.
        begun: Whether training has started.
        closed: Whether the directory was given back.
        is_told_twice: Whether someone who waited for its end does not want to any more.
        saved_trials: The trials that the saved state names, if the run resumes one.
    """

    def __init__(
        self, site: Site, checkpoint_depth: int, timeout_s: float, strict: bool = False
    ) -> None:
        self._site, self.root, self.where = site, site.root, site.where
        self.owner = uuid.uuid4().hex
        self.lease = site.lease(self.owner)
        self.home = site.home(self.owner, checkpoint_depth)
        self.begun = self.closed = self.is_told_twice = False
        self._call = Call()
        self.lease.acquire(may_take=OWN.may_replace, goes_on=lambda: not self.is_left)
        self.behind: Behind | None = None
        self._watched = WatchedCommitter(self.home.committer)
        try:
            self.publisher = Publisher(self._watched, site.where, self.home.publish_at_once)
        except BaseException:  # no more threads; a lease that nobody gives back beats for ever
            self.lease.hand_back()
            raise
        self._latest: dict[str, tuple[str, frozenset[str]]] = {}
        self._timeout_s, self._strict, self.refused = timeout_s, strict, Refused()
        self._published_early, self._let_go = set[str](), set[str]()  # the latter by Ray
        self._taken, self._visible = set[str](), set[str]()  # published by any run; not let go
        self.corrections, self.versions = Corrections(), Versions()
        self.in_use: Callable[[], Collection[str]] = frozenset
        self.saved_trials: frozenset[TrialNames] = frozenset()

    @classmethod
    def open(
        cls, root: Path | Site, on_existing: str, timeout_s: float, checkpoint_depth: int,
        finish_earlier: Callable[[], None] = lambda: None, ways_out: str = "",
        strict: bool = False, keeps_all: bool = False,
    ) -> Run:  # fmt: skip
        """Take an experiment directory.

        Args:
            root: The experiment directory, of this machine or of a bucket.
            on_existing: If an experiment is there: "error", "move_aside" or "resume".
            timeout_s: See `SyncConfig.sync_timeout`.
            checkpoint_depth: See `layout.classify`.
            finish_earlier: Before a run is resumed: has the nodes send what they had staged for it.
            ways_out: What to do about an experiment that is there; see `new_run.ways_out`.
            strict: See `SyncConfig.strict`.
            keeps_all: See `recorded.passed_by`.

        Raises:
            ExperimentExistsError: There is one, and `on_existing` is "error".
            DamagedError: There is one to resume, and its state cannot be read; nothing is changed.
            LeaseHeldError: Another live run has it.
            StoreError, OSError: The directory cannot be written.
        """
        site = LocalSite(root) if isinstance(root, Path) else root
        site.check()
        OWN.end_left(site.where)
        make_way(site, on_existing, ways_out, OWN.may_replace)
        with taking(site) as look:
            site.prepare()
            if on_existing == "resume" and site.live_holder() is None:
                finish_earlier()
            OWN.end_unbegun(site.where)
            run = cls(site, checkpoint_depth, timeout_s, strict)
            run.home.committer.keeps_all = keeps_all
        try:
            look()
            if on_existing == "error" and site.holds_experiment():  # it came up since we looked
                raise exists_already(site, ways_out)
            is_train = not checkpoint_depth
            if is_train:
                go_by_record(run.home, site.where, resumes=on_existing == "resume")
            elif on_existing == "resume":  # read before anything is swept
                run.saved_trials = saved_trials(run.home, site.where)
            run.recover(waits=on_existing == "resume" and not is_train, is_train=is_train)
        except BaseException:
            run.give_back()
            raise
        OWN.add(run)
        return run

    def begin(self) -> None:
        """Training starts, in the call of `fit()` that calls this: when it is over, so is this."""
        self.begun = True
        self._call.begin()

    @property
    def is_left(self) -> bool:
        """Whether its `fit()` is over, and did not end it: it was interrupted, or raised."""
        return self._call.is_over

    def recover(self, *, waits: bool = False, is_train: bool = False) -> None:
        """Publish what earlier runs have left in staging, or drop it; `waits`: nodes come later."""
        found = self.home.committer.recover(strict=self._strict, waits=waits)
        found += recover_inner(self._site, self.home, self.owner, strict=self._strict, resumes=True)
        log_recovery(self.where, found)
        if is_train:
            retire_unnamed(self.home, self.where)
        if self.home.in_place:
            self._taken = set(self.home.published_keys())
            self._visible = set(self._taken)

    def publish(
        self, checkpoint: str, strict: bool, attempts: Collection[str],
        metrics: dict[str, Any] | None = None,
    ) -> Conflicts:  # fmt: skip
        """Make a checkpoint visible now, and record it in the background; see `Committer.place`.

        Raises:
            AskedTwiceError: It is the trial's latest, and was published from these attempts.
            ImmutableError: A checkpoint of that name is published.
            SyncTimeoutError: One is still being recorded or deleted, after `sync_timeout`.
        """
        if attempts and self._published_early.issuperset(attempts):
            self._published_early.difference_update(attempts)
            return ()
        self._let_go.discard(checkpoint)
        latest, published_from = self._latest.get(layout.parent(checkpoint), ("", frozenset()))
        if latest == checkpoint and published_from.issuperset(attempts):
            raise AskedTwiceError(f"{checkpoint} is published already; it counts once")
        is_on_nodes = are_on_nodes(attempts)
        if not is_on_nodes:
            self.publisher.wait_for(checkpoint, self._timeout_s)
        if self._is_published(checkpoint, is_on_nodes):
            raise ImmutableError(
                f"{checkpoint} is published and never changes; what was now reported under that "
                "name is not stored: choose another trial_dirname_creator, or another name for the "
                "experiment"
            )
        if self.behind is not None and is_on_nodes:
            self.behind.accept(checkpoint, strict, attempts, metrics)
            self.note_latest(checkpoint, attempts)
            return ()
        self.publisher.keep(checkpoint, self._timeout_s)
        placed = self.home.committer.place(
            checkpoint, strict=strict, attempts=attempts, metrics=metrics
        )
        self.note_latest(checkpoint, attempts)
        if self.home.in_place:  # else nobody asks, and there may be very many
            self._taken.add(checkpoint)
            self._visible.add(checkpoint)
        record_later = self.behind.accept_placed if self.behind else self.publisher.record_later
        record_later(placed.manifest)
        return tuple(placed.conflicts)

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
        if layout.by_age(checkpoint) > layout.by_age(self.latest(trial)):
            self._latest[trial] = (checkpoint, frozenset(attempts))

    def latest(self, trial: str) -> str:
        """The latest published checkpoint of a trial's directory that this run knows, or ""."""
        return self._latest.get(trial, ("", frozenset()))[0]

    def let_go(self, checkpoint: str, *, has_ended: bool = False) -> None:
        """Ray deletes a checkpoint: `retire_later`, at once or when it is not in use any more.

        `has_ended`: its trial will not go on, so that even its latest may go.
        """
        self._visible.discard(checkpoint)
        if has_ended:
            self._latest.pop(layout.parent(checkpoint), None)
        if checkpoint in self.in_use():
            self._let_go.add(checkpoint)
        else:
            self.retire_later(checkpoint)

    def retire_unused(self) -> None:
        """`retire_later` what Ray has let go and is not in use any more."""
        for checkpoint in sorted(self._let_go.difference(self.in_use())) if self._let_go else ():
            self._let_go.remove(checkpoint)
            self.retire_later(checkpoint)

    def spare(self, checkpoint: str) -> bool:
        """Take back a delete that has not begun; returns whether there was one."""
        found = [checkpoint in self._let_go, self.publisher.spare(checkpoint)]
        self._let_go.discard(checkpoint)
        found += [self.behind.spare(checkpoint)] if self.behind is not None else []
        return any(found)

    def is_there(self, checkpoint: str) -> bool:
        """Whether a checkpoint is on its way, or published, and is not being deleted."""
        is_known = self.is_on_its_way(checkpoint) or bool(self.home.info(checkpoint))
        return is_known and not self.publisher.is_retiring(checkpoint)

    def retire_later(self, checkpoint: str) -> None:
        """See `Publisher.retire_later`. Never a trial's latest: Ray does not delete that either."""
        if self.latest(layout.parent(checkpoint)) == checkpoint:
            logger.warning("%s is the latest of its trial; it is not deleted", checkpoint)
            return
        deleted = self.versions.deleted()
        if self.behind is not None:
            self.behind.retire_later(checkpoint)
        else:
            self.publisher.retire_later(checkpoint, deleted, deleted.is_before)

    def is_on_its_way(self, key: str) -> bool:
        """Whether a key is that of a checkpoint that this run knows, and need not ask for."""
        is_known = self.behind is not None and self.behind.is_known(key)
        return is_known or (self.home.in_place and key in self._visible)

    def write_behind(self, nodes: Nodes, backlog: Backlog | None = None) -> None:
        """From here on checkpoints may be staged on the nodes that wrote them. See `Behind`."""
        self.behind = Behind(
            self.home, self.publisher, nodes, self.check_lease, backlog, self.where,
            self.corrections,
        )  # fmt: skip

    def newest_of_earlier(self, trial: str) -> str:
        """The newest checkpoint of a trial's directory that earlier runs published, or ""."""
        keys = self._taken if self.home.in_place else self.home.published_keys()
        return newest_of(key for key in keys if layout.parent(key) == trial).get(trial, "")

    def publish_early(
        self, checkpoint: str, strict: bool, attempts: Collection[str],
        metrics: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """`publish`, if one of these attempts is still in staging. Someone is about to load it."""
        if self._awaits_placing(checkpoint, attempts):
            self.publish(checkpoint, strict, attempts, metrics)
            self._published_early.update(attempts)
        if self.behind is not None:
            self.behind.hurry(checkpoint)

    def discard_staged(self, trial: str) -> None:
        """Drop, in the background, what a trial whose writers are gone has in staging.

        A bucket is not asked in the control loop: what is left there is swept when the run ends.
        """
        if not self.home.in_place and self.behind is None:  # else it may be sent from elsewhere
            found = self.home.committer.attempts(trial)
            spared = {c for c, _ in found if self.refused.may_come(f"{self.root}/{c}")}
            self.publisher.discard_later([(c, a) for c, a in found if c not in spared])

    def flush(self, timeout_s: float, between: Callable[[], None] = lambda: None) -> None:
        """Publish all that is placed, and apply the deletes that the last state allows.

        Args:
            timeout_s: Give up if nothing moves for so long.
            between: Called again and again while this waits for other nodes.

        Raises:
            NotStoredError: Something that was reported is not published; names it and why.
            SyncTimeoutError: It took longer than `timeout_s`.
        """
        if self.behind is not None:
            is_last = self.versions.is_last_here
            self.behind.flush(timeout_s, between, is_last=is_last)
        self.publisher.flush(timeout_s)
        if self._watched.watcher is not None:
            self._watched.watcher.flush()
        if self.refused:
            raise NotStoredError("; ".join(f"{c}: {e}" for c, e in self.refused.items()))

    def close(self) -> None:
        """Sweep what is left in staging, and give the directory back. May be called twice.

        If nodes have something that is not stored, they go on sending it; the next run finds it.
        Where the run was told twice to stop, that is done in the background, if there is time.
        """
        if self.closed:
            return
        if not self.is_told_twice:
            self._close()
            return
        logger.warning("%s: not all is stored; nodes go on, and a restore publishes it", self.where)
        thread = threading.Thread(target=self._close, name="tune_sync-close", daemon=True)
        thread.start()
        thread.join(LAST_MOMENT_S)

    def _close(self) -> None:
        is_all_sent = self.behind is None or self.behind.is_all_stored
        try:
            if self._end(self._timeout_s) and is_all_sent:
                self.lease.check()  # staging of a run that took over is not ours to sweep
                self._tidy()
        except Exception as error:  # the next start does it; what fit() raises says more
            logger.warning("%s: staging is not tidied: %s", self.where, error)
        finally:
            self._give(self.lease.release if is_all_sent else self.lease.leave)

    def _tidy(self) -> None:
        """Sweep, unless something that was reported may still be published by the next run."""
        self.publisher.try_again()  # what was placed is known to others once the store takes a put
        errors = [*self.refused.values(), *self.publisher.failed().values()]
        errors += self.behind.refused.values() if self.behind is not None else ()
        if not any(map(may_pass, errors)):
            log_forgotten(self.where, self.home.committer.sweep())

    def give_back(self) -> None:
        """End a run that did not begin, and leave the directory as it is."""
        if not self.closed:
            self._end(self._timeout_s)
            self._give(self.lease.hand_back)

    def leave(self) -> None:
        """As `give_back`, of a run that is left: what else there is is for the next run to find."""
        self._end(LAST_WAIT_S if self.is_told_twice else self._timeout_s)
        self._give(self.lease.leave)

    def check_lease(self) -> None:
        """The fence, for the control loop; see `RunLease.check_known`."""
        self.lease.check_known()

    def note_refused(self) -> None:
        """Tell of what was placed and turned out to be refused. Makes no request."""
        self.refused.tell({f"{self.root}/{c}": e for c, e in self.publisher.refused().items()})

    def _is_published(self, checkpoint: str, is_on_nodes: bool) -> bool:
        if self.behind is not None and (is_on_nodes or self.behind.is_known(checkpoint)):
            return self.behind.is_known(checkpoint)  # no request, whether it answers or not
        if self.home.in_place:  # no request from the control loop; nobody else publishes
            return checkpoint in self._taken
        return self.home.info(layout.manifest_key(checkpoint)) is not None

    def _awaits_placing(self, checkpoint: str, attempts: Collection[str]) -> bool:
        if self.behind is not None and are_on_nodes(attempts):
            return not self.behind.is_known(checkpoint)
        if self.home.in_place:
            return bool(attempts) and checkpoint not in self._taken
        staged = self.home.committer.attempts(layout.parent(checkpoint))
        return any(key == checkpoint and attempt in attempts for key, attempt in staged)

    def _end(self, timeout_s: float) -> bool:
        self.closed = True
        if self.behind is not None:
            self.behind.close(timeout_s)
        if self._watched.watcher is not None:
            self._watched.watcher.close()
        return self.publisher.close(timeout_s)

    def _give(self, give: Callable[[], None]) -> None:
        give()
        self._call.forget()
        OWN.remove(self.owner)
