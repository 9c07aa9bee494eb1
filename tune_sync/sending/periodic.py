"""A backlog of which only each trial's newest checkpoint travels, once a period. Pure: no I/O.

What does not travel must not be named. So the state that is written names, of each trial, what is
at the destination (`Named`), and not what Ray's record holds at the moment. Only a trial that has
ended is not written as ended before its last checkpoint is there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tune_sync import layout
from tune_sync.layout import by_age
from tune_sync.sending.backlog import Accepted
from tune_sync.sending.gate import Gate
from tune_sync.sending.planned import PlannedBacklog
from tune_sync.sending.turns import Turns


@dataclass(frozen=True, slots=True)
class Named:
    """What the state that is written says of a trial's checkpoints.

    Attributes:
        trial_id: Ray's id of the trial.
        record: As it stands in the state.
        names: The checkpoints in it.
    """

    trial_id: str
    record: Any
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class View:
    """What a version that is written now says.

    Attributes:
        records: Trial id -> see `Named.record`.
        unready: Ids of trials that must not be written as ended yet -> their directories.
    """

    records: Mapping[str, Any] = field(default_factory=dict)
    unready: Mapping[str, str] = field(default_factory=dict)


class PeriodicBacklog(PlannedBacklog):
    """See `PlannedBacklog`. Trials are given by their directories.

    Args:
        gate: See `PlannedBacklog`.
        turns: Whose turn it is when.
        state_s: See `Backlog`.
    """

    def __init__(self, gate: Gate, turns: Turns, state_s: float = 0.0) -> None:
        super().__init__(gate)
        self.state_s = state_s
        self._turns = turns
        self._travelling: set[str] = set()
        self._last: set[str] = set()  # of trials that have ended, and not named
        self._lost_last: set[str] = set()
        self._ended_trials: set[str] = set()
        self._has_ended = False
        self._dropped: set[str] = set()  # Ray has them in its record
        self._retired: set[str] = set()  # Ray deleted them, and they travel or are named
        self._named: dict[str, Named] = {}
        self._names_count: Counter[str] = Counter()
        self._missing: dict[str, frozenset[str]] = defaultdict(frozenset)
        self._stale: set[str] = set()
        self._changes_count = 0
        self._viewed_count = 0

    # What the control loop tells and asks

    def track(self, trial: str, there: Iterable[str]) -> bool:
        """From here on state names of a trial what is there; returns whether that is new.

        Args:
            trial: The trial.
            there: What it had when this run began with it: checkpoints of earlier runs.
        """
        if trial in self._named:
            return False
        for checkpoint in there:
            if checkpoint not in self._accepted:
                self._published[layout.parent(checkpoint)].add(checkpoint)
        self._stale.add(trial)
        return True

    def supersede(self, checkpoint: str) -> None:
        """Ray registers it: what is older and has not had its turn never travels."""
        trial, age = layout.parent(checkpoint), by_age(checkpoint)
        for other in self._of(trial):
            if by_age(other.checkpoint) < age and self._may_drop(other):
                self._drop(other)
        self._stale.add(trial)

    def take_dropped(self) -> set[str]:
        """What was dropped, and Ray has to forget. Each is told once."""
        dropped, self._dropped = self._dropped, set()
        return dropped

    def end_trial(self, trial: str) -> None:
        """A trial has ended: its last checkpoint travels now."""
        self._ended_trials.add(trial)
        for accepted in self._of(trial):
            self._finish(accepted)

    def doom(self, checkpoint: str) -> None:
        """See `Backlog.doom`. What state names is known here."""
        accepted = self._accepted.get(checkpoint)
        if accepted is not None and self._may_drop(accepted):
            self._drop(accepted)
        elif accepted is not None or self._is_there(checkpoint):
            self._retired.add(checkpoint)
            self._stale |= self._holders(checkpoint)
        else:
            super().doom(checkpoint)

    def spare(self, checkpoint: str) -> bool:
        """See `Backlog.spare`."""
        was_doomed = super().spare(checkpoint) or checkpoint in self._retired
        self._retired.discard(checkpoint)
        self._stale |= self._holders(checkpoint)
        return was_doomed

    def ended(self, *, is_last: bool = True) -> None:
        """See `Backlog.ended`. What was accepted last travels now."""
        self._has_ended, self.state_s = True, 0.0
        for accepted in list(self._accepted.values()):
            self._finish(accepted)
        super().ended(is_last=is_last)

    def forgot(self, checkpoints: Collection[str]) -> None:
        """See `Backlog.forgot`."""
        self.gone.difference_update(checkpoints)
        for checkpoint in self._lost_last.intersection(checkpoints):
            self.cut.doom(checkpoint)

    # What state names

    def take_stale(self) -> set[str]:
        """Trials of which state would name something else now. Each is told once."""
        stale, self._stale = self._stale, set()
        return stale

    def names(
        self, trial: str, known: Sequence[str], current: str, ever_known: Collection[str],
    ) -> tuple[list[str], str]:  # fmt: skip
        """What state may name of a trial, and what it goes on from ("" if there is nothing).

        Args:
            trial: The trial.
            known: What Ray's record holds, in order.
            current: What Ray would go on from.
            ever_known: What Ray's record has held. A save that Ray has dropped is published too,
                and not named before Ray registers it: a restore finds it where it is.
        """
        self._missing[trial] = frozenset(c for c in (*known, current) if not self._is_there(c))
        there = [c for c in known if self._is_there(c) and c not in self._retired]
        own = max(self._published.get(trial, set()) & set(ever_known), key=by_age, default="")
        latest = current if self._is_there(current) else own
        return ([] if latest in there or not latest else [latest]) + there, latest

    def name(self, trial: str, named: Named) -> None:
        """State that is written from now on says so of a trial. Call `settle` then."""
        before = self._named[trial].names if trial in self._named else frozenset()
        self._named[trial] = named
        self._names_count.update(named.names)
        self._names_count.subtract(before)
        self._names_count += Counter()  # drops those that are zero
        self._changes_count += 1
        self._let_go(before)

    def settle(self, trial: str) -> None:
        """What is said of a trial is up to date: nobody waits for it; what it leaves out goes."""
        for checkpoint in self._last_of(trial):
            if self._is_there(checkpoint):
                self._last.discard(checkpoint)
                self.cut.stored(checkpoint)
        self._let_go(self._published.get(trial, set()))

    def on_their_way(self, trial: str) -> list[str]:
        """What is neither there nor dropped, of a trial."""
        return [accepted.checkpoint for accepted in self._of(trial)]

    def view(self) -> View:
        """For a version that was taken now."""
        self._viewed_count = self._changes_count
        waiting = {layout.parent(c) for c in (*self._accepted, *self._last)}
        unready = {self._named[t].trial_id: t for t in waiting if t in self._named}
        return View({n.trial_id: n.record for n in self._named.values()}, unready)

    def required(self, trial: str) -> list[str]:
        """What has to be there before a version says that a trial has ended; it travels now."""
        self.end_trial(trial)
        return self._last_of(trial)

    @property
    def is_to_be_written_again(self) -> bool:
        """After the end: whether the last version, written once more, would name something else."""
        is_quiet = self._has_ended and not self._accepted and not self._stale
        return is_quiet and self.cut.is_settled and self._viewed_count != self._changes_count

    @property
    def is_flushed(self) -> bool:
        """See `Backlog.is_flushed`."""
        is_named = not self._stale and self._viewed_count == self._changes_count
        return super().is_flushed and is_named

    # Inside

    def _take(self, accepted: Accepted) -> None:
        self._accepted[accepted.checkpoint] = accepted
        if self._has_ended or layout.parent(accepted.checkpoint) in self._ended_trials:
            self._finish(accepted)

    def _arrived(self, checkpoint: str) -> None:
        self._travelling.discard(checkpoint)
        self._stale |= self._holders(checkpoint)
        if layout.parent(checkpoint) not in self._named:  # Ray never registered any of its trial
            self._last.discard(checkpoint)
        if checkpoint not in self._last:  # else once its trial is settled
            super()._arrived(checkpoint)

    def _lose(self, checkpoint: str) -> None:
        self._travelling.discard(checkpoint)
        if checkpoint in self._last:
            self._last.discard(checkpoint)
            self._lost_last.add(checkpoint)
            self.cut.lost(checkpoint)
        self._stale |= self._holders(checkpoint)

    def _finish(self, accepted: Accepted) -> None:
        """Its trial has ended: drop it, or have it travel, and state wait for it."""
        checkpoint = accepted.checkpoint
        if checkpoint in self._retired and checkpoint not in self._hurried:
            self._retired.discard(checkpoint)
            self._travelling.discard(checkpoint)
            del self._accepted[checkpoint]
            self._forget(accepted, is_published=False)
        elif checkpoint not in self._last:
            self._last.add(checkpoint)
            self.cut.accepted(checkpoint)

    def _candidates(self, now_s: float) -> Iterable[str]:
        newest: dict[str, str] = {}
        for checkpoint, accepted in self._accepted.items():
            if checkpoint not in self._travelling and accepted.staged:
                trial = layout.parent(checkpoint)
                newest[trial] = max(newest.get(trial, ""), checkpoint, key=by_age)
        for trial in newest:
            self._turns.wait(trial, now_s)
        due = [c for t, c in newest.items() if self._turns.is_due(t, now_s) or self._is_in_way(c)]
        first = (*self._first(), *sorted(self._last, key=by_age))
        rest = [c for c in (*self._travelling, *due) if c not in self._put_off]
        return dict.fromkeys((*first, *rest, *self._put_off))

    def _entered(self, checkpoint: str) -> None:
        if checkpoint not in self._travelling:
            self._travelling.add(checkpoint)
            self._turns.took(layout.parent(checkpoint))

    def _is_in_way(self, checkpoint: str) -> bool:
        """Whether writers on one of its nodes wait for room."""
        found = self._accepted[checkpoint]
        nodes = {*self._parts(checkpoint).values(), *found.replicas.values()}
        return any(self._news[n].is_full for n in nodes if n in self._news)

    def _let_go(self, checkpoints: Iterable[str]) -> None:
        for checkpoint in self._retired.intersection(checkpoints):
            if not self._names_count[checkpoint] and checkpoint not in self._accepted:
                self._retired.discard(checkpoint)
                self.cut.unnamed(checkpoint)

    def _may_drop(self, accepted: Accepted) -> bool:
        """Whether nobody waits for it, and its turn has not come."""
        used = self._travelling | self._last | self._hurried.keys()
        is_staged = bool(accepted.staged) and not accepted.stored and accepted.manifest is None
        return is_staged and accepted.checkpoint not in used

    def _drop(self, accepted: Accepted) -> None:
        del self._accepted[accepted.checkpoint]
        self._dropped.add(accepted.checkpoint)
        self._forget(accepted, is_published=False)

    def _of(self, trial: str) -> list[Accepted]:
        found = (self._accepted[c] for c in list(self._accepted) if layout.parent(c) == trial)
        return sorted(found, key=lambda accepted: by_age(accepted.checkpoint))

    def _last_of(self, trial: str) -> list[str]:
        return [c for c in self._last if layout.parent(c) == trial]

    def _is_there(self, checkpoint: str) -> bool:
        return checkpoint in self._published.get(layout.parent(checkpoint), ())

    def _holders(self, checkpoint: str) -> set[str]:
        """Tracked trials whose part of the state depends on a checkpoint."""
        found = {t for t, n in self._named.items() if checkpoint in n.names}
        found |= {t for t, missing in self._missing.items() if checkpoint in missing}
        own = layout.parent(checkpoint)
        return found | ({own} if own in self._named else set())
