"""A driver with `PeriodicBacklog`, as a model, for tests of what travels and what is named.

Ray's side is modelled as it is: it keeps all or some of the checkpoints that it registers, and
makes versions of its state at one moment that are written at a later one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tune_sync import layout
from tune_sync.homes.state_records import NotYetError
from tune_sync.sending.cut import HeldVersion
from tune_sync.sending.gate import Gate
from tune_sync.sending.orders import AT, News
from tune_sync.sending.periodic import Named, PeriodicBacklog, View
from tune_sync.sending.turns import Turns

PERIOD_S = 10.0
STATE = "experiment_state.json"
NODE = "n"
TRIALS = ("t", "u")


@dataclass
class Trial:
    """What Ray knows of a trial."""

    name: str
    keep: int | None
    count: int = 0
    kept: list[str] = field(default_factory=list)
    ever_kept: set[str] = field(default_factory=set)
    latest: str = ""
    has_ended: bool = False


class Driver:
    """The driver around a backlog: does what the callback, the threads and the nodes do."""

    def __init__(self, keep: int | None = None, limit_count: int | None = None) -> None:
        self.backlog = PeriodicBacklog(Gate(limit_count), Turns(PERIOD_S, 0.0))
        self.trials = {name: Trial(name, keep) for name in TRIALS}
        self.now_s = 0.0
        self.on_node: dict[str, str] = {}  # attempt -> checkpoint
        self.sent: list[str] = []
        self.gone: set[str] = set()  # dropped, lost, or deleted
        self.published: set[str] = set()
        self.at_destination: dict[str, tuple[frozenset[str], str]] = {}
        self.said: dict[str, tuple[list[str], str]] = {}
        self.held: HeldVersion | None = None
        self.view = View()

    def report(self, name: str) -> str:
        trial = self.trials[name]
        checkpoint = f"{name}/{layout.checkpoint_name(trial.count)}"
        trial.count += 1
        self.accept(checkpoint)
        self.backlog.track(name, trial.kept)
        self.backlog.supersede(checkpoint)
        dropped = self.backlog.take_dropped()
        self.gone |= dropped
        trial.kept = [c for c in trial.kept if c not in dropped]
        trial.kept.append(checkpoint)
        trial.ever_kept.add(checkpoint)
        trial.latest = checkpoint
        while trial.keep is not None and len(trial.kept) > trial.keep:
            self.delete(trial.kept.pop(0))
        self.refresh()
        return checkpoint

    def accept(self, checkpoint: str) -> None:
        self.on_node[f"a-{checkpoint}"] = checkpoint
        self.backlog.accept(checkpoint, False, [f"a-{checkpoint}{AT}{NODE}"], None)

    def delete(self, checkpoint: str) -> None:
        was_waiting = checkpoint in self.backlog.on_their_way(layout.parent(checkpoint))
        self.backlog.doom(checkpoint)
        if was_waiting and checkpoint not in self.backlog.on_their_way(layout.parent(checkpoint)):
            self.gone.add(checkpoint)
        self.backlog.take_dropped()

    def refresh(self) -> None:
        for name in self.backlog.take_stale():
            trial = self.trials[name]
            said = names, latest = self.backlog.names(
                name, trial.kept, trial.latest, trial.ever_kept
            )
            if self.said.get(name) != said:
                self.said[name] = said
                named = frozenset({*names, latest} - {""})
                self.backlog.name(name, Named(name, said, named))
            self.backlog.settle(name)

    def plan(self) -> list[str]:
        self.backlog.plan(self.now_s)
        if NODE not in self.backlog.nodes:
            return []
        return [self.on_node[a] for a in self.backlog.orders(NODE).wanted]

    def send(self, checkpoint: str) -> None:
        assert checkpoint not in self.gone
        self.sent.append(checkpoint)
        attempt = f"a-{checkpoint}"
        self.backlog.hear(NODE, News(held=list(self.on_node), stored={attempt: attempt}))
        for accepted in self.backlog.complete():
            self.published.add(accepted.checkpoint)
            self.backlog.published(accepted.checkpoint)

    def make(self) -> dict[str, str]:
        return {t.name: t.latest for t in self.trials.values() if t.has_ended}

    def offer(self, version: dict[str, str]) -> None:
        """A version: the trials in it that have ended, and the last checkpoint of each."""
        self.backlog.cut.offer(STATE, lambda: self.write(version), is_state=True)

    def write(self, version: dict[str, str]) -> None:
        early = sorted(version.keys() & self.view.unready.keys())
        if early:
            raise NotYetError(early)
        self.at_destination = {}
        for name, (names, latest) in self.view.records.items():
            assert set(names) | {latest} - {""} <= self.published - self.gone, (names, latest)
            self.at_destination[name] = (frozenset(names), latest)
        for name, last in version.items():
            if last and last not in self.gone:
                assert self.at_destination[name][1] == last

    def take(self) -> None:
        self.begin_write()
        self.end_write()

    def begin_write(self) -> None:
        if self.held is None:
            self.held = self.backlog.cut.take()
            self.view = self.backlog.view() if self.held is not None else self.view

    def end_write(self) -> None:
        held, self.held = self.held, None
        if held is None:
            return
        try:
            for write in held.files.values():
                write()
        except NotYetError as error:
            needed = [c for t in error.trial_ids for c in self.backlog.required(t)]
            self.backlog.cut.require(held, needed)
            return
        self.backlog.cut.wrote(held)

    def delete_some(self) -> None:
        named = {c for names, latest in self.at_destination.values() for c in (*names, latest)}
        for checkpoint in self.backlog.cut.deletable():
            assert checkpoint not in named
            self.gone.add(checkpoint)
            self.backlog.deleted(checkpoint)

    def end(self, name: str) -> None:
        before = set(self.backlog.on_their_way(name))
        self.backlog.end_trial(name)
        self.gone |= before - set(self.backlog.on_their_way(name))
        self.trials[name].has_ended = True

    def finish(self) -> None:
        """The loop ends: all that is left is sent, and the last state written."""
        for name, trial in self.trials.items():
            if not trial.has_ended:
                self.end(name)
        self.offer(self.make())
        self.backlog.ended()
        for _ in range(50):
            for checkpoint in self.plan():
                self.send(checkpoint)
            self.refresh()
            if self.backlog.is_to_be_written_again:
                self.offer(self.make())
            self.take()
            self.delete_some()
            if self.backlog.is_flushed:
                return
        raise AssertionError("it comes to no end")
