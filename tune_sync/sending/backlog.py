"""What a run's driver knows of checkpoints that are on their way. Pure: no I/O, no clock.

A checkpoint is *accepted* when Ray registers it, and *published* once all its parts are stored at
the destination. Parts are attempts; each is on a node until that node's agent says it is stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from tune_sync import layout
from tune_sync.manifest import Manifest
from tune_sync.sending.cut import Cut
from tune_sync.sending.orders import AT, News, Orders
from tune_sync.sending.words import on_their_way

NAMES_SHOWN_COUNT = 5
# Why a checkpoint is lost that a person, or another program, has removed.
NOT_STAGED = "it has gone from the staging directory of its node"
NOT_STORED = "it has gone from its destination, and was not removed by tune_sync"


@dataclass(slots=True)
class Accepted:
    """A checkpoint that Ray knows, and that is not published.

    Attributes:
        checkpoint: Its key.
        strict: See `manifest.unite`.
        metrics: See `Manifest.metrics`.
        direct: Attempts that were sealed at the destination.
        staged: Attempt -> the node that sends it.
        replicas: Attempt, of those -> another node that has it too, and sends it if that is lost.
        stored: Attempt, of those -> its id at the destination.
        manifest: If it is placed already.
    """

    checkpoint: str
    strict: bool = False
    metrics: dict[str, Any] | None = None
    direct: list[str] = field(default_factory=list)
    staged: dict[str, str] = field(default_factory=dict)
    replicas: dict[str, str] = field(default_factory=dict)
    stored: dict[str, str] = field(default_factory=dict)
    manifest: Manifest | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all its parts are at the destination."""
        return len(self.stored) == len(self.staged)

    @property
    def is_replicated(self) -> bool:
        """Whether two nodes have all of it that is not known to be stored."""
        unsent = self.staged.keys() - self.stored.keys()
        return bool(unsent) and unsent <= self.replicas.keys()

    @property
    def attempts(self) -> list[str]:
        """Its parts' ids there."""
        return [*self.direct, *self.stored.values()]

    def unsent_at(self, node: str) -> list[str]:
        """Its parts on a node that are not known to be stored."""
        return [a for a, at in self.staged.items() if at == node and a not in self.stored]

    def unsent_or_replicated_at(self, node: str) -> list[str]:
        """These, and those of which that node has a replica."""
        replicas = [a for a, at in self.replicas.items() if at == node and a not in self.stored]
        return [*self.unsent_at(node), *replicas]

    def turn_to_replica(self, attempt: str) -> str:
        """From here on its other node sends a part; returns that node, or "" if there is none."""
        node = self.replicas.pop(attempt, "")
        if node:
            self.staged[attempt] = node
        return node


class Backlog:
    """For one thread at a time. Checkpoints are keys.

    Attributes:
        cut: Which state may be written when.
        moves_count: Grows whenever anything moves.
        state_s: Seconds between two versions of the state that are written.
        gone: What was lost, and Ray still has in its record.
        keeps_all: Whether each checkpoint is wanted, however many later ones its trial has.
    """

    state_s = 0.0
    keeps_all = False

    def __init__(self) -> None:
        self.cut = Cut()
        self.moves_count = 0
        self._accepted: dict[str, Accepted] = {}
        self._published: dict[str, set[str]] = defaultdict(set)  # by trial
        self._published_count = 0
        self._hurried: dict[str, None] = {}
        self._doubted: set[str] = set()
        self._done: dict[str, dict[str, bool]] = {}  # by node: attempt -> whether it is published
        self._lost: dict[str, str] = {}
        self.gone: set[str] = set()
        self._excused: set[str] = set()  # lost with the node, or removed by someone
        self._told: dict[str, frozenset[str]] = {}  # by node: what was done when it was asked
        self._news: dict[str, News] = {}

    # What the control loop tells and asks

    def accept(
        self, checkpoint: str, strict: bool, attempts: Collection[str],
        metrics: dict[str, Any] | None,
    ) -> None:  # fmt: skip
        """Take a checkpoint, by its attempts as they were reported."""
        accepted = Accepted(checkpoint, strict, metrics)
        for reported in attempts:
            attempt, *nodes = reported.split(AT)
            for node in nodes:
                self._done.setdefault(node, {})
            if nodes:
                accepted.staged[attempt] = nodes[0]
            else:
                accepted.direct.append(attempt)
            if len(nodes) > 1:
                accepted.replicas[attempt] = nodes[1]
        self._take(accepted)

    def accept_placed(self, manifest: Manifest) -> None:
        """Take a checkpoint that is in its place, to be recorded."""
        self._take(Accepted(manifest.checkpoint, manifest=manifest))

    def is_known(self, checkpoint: str) -> bool:
        """Whether it is on its way, or was published by this run and not deleted."""
        published = self._published.get(layout.parent(checkpoint), ())
        return checkpoint in self._accepted or checkpoint in published

    def hurry(self, checkpoint: str) -> None:
        """Someone is about to load it."""
        if checkpoint in self._accepted:
            self._hurried[checkpoint] = None
        else:
            self._doubted.add(checkpoint)

    def take_doubted(self) -> set[str]:
        """What someone is about to load from the destination: is it there? Each is told once."""
        doubted, self._doubted = self._doubted, set()
        return doubted

    def forgot(self, checkpoints: Collection[str]) -> None:
        """Ray has forgotten these, of `gone`."""
        self.gone.difference_update(checkpoints)
        for checkpoint in checkpoints:
            self.cut.doom(checkpoint)

    def newest_published(self, trial: str) -> str:
        """The newest checkpoint of a trial's directory that is at the destination, or ""."""
        return max(self._published.get(trial, ()), key=layout.by_age, default="")

    def why_lost(self, checkpoint: str) -> str:
        """Why a checkpoint is lost; "" if it is not."""
        return self._lost.get(checkpoint, "")

    def doom(self, checkpoint: str) -> None:
        """Ray deleted it: it goes once no state at the destination names it. See `Cut.doom`."""
        self.cut.doom(checkpoint)

    def spare(self, checkpoint: str) -> bool:
        """Take back `doom`; returns whether that was not too late."""
        return self.cut.spare(checkpoint)

    def ended(self, *, is_last: bool = True) -> None:
        """The control loop has ended. `is_last`: see `Cut.ended`."""
        self.cut.ended(is_last=is_last)

    # The nodes

    def plan(self, now_s: float) -> None:
        """Decide what may travel now, at a moment of a monotonic clock. Call it before `orders`."""

    @property
    def nodes(self) -> list[str]:
        """Where anything was ever staged."""
        return list(self._done)

    def needed_nodes(self, checkpoint: str) -> set[str]:
        """Where parts of a checkpoint are that are not stored."""
        found = self._accepted.get(checkpoint)
        return {n for n in found.staged.values() if found.unsent_at(n)} if found else set()

    def orders(self, node: str) -> Orders:
        """What a node's agent has to know."""
        pinned, held_back = self.cut.pinned(), self.cut.held_back()
        first = dict.fromkeys((*self._hurried, *sorted(pinned, key=layout.by_age)))
        done = self._done.get(node, {})  # none where it was lost just now
        self._told[node] = frozenset(done)
        return Orders(
            expected=self._at(node, self._accepted),
            wanted=self._at(node, first),
            published=[attempt for attempt, is_published in done.items() if is_published],
            dropped=[attempt for attempt, is_published in done.items() if not is_published],
            held_back=self._at(node, held_back - first.keys()),
            parts=self._parts_at(node),
        )

    def hear(self, node: str, news: News) -> str:
        """Take what a node's agent says; returns what it complains of, if that is new."""
        before = self._news.get(node, News())
        if news.sent_bytes > before.sent_bytes:  # less: its agent was started again
            self.moves_count += 1
        self._news[node] = news
        # What it was not told of when it was asked it may have got since.
        gone = self._told.get(node, frozenset()) - set(news.held)
        self._done[node] = {a: p for a, p in self._done.get(node, {}).items() if a not in gone}
        for accepted in list(self._accepted.values()):
            for attempt in accepted.unsent_at(node):
                self._hear_of(accepted, attempt, news)
        return news.error if not before.error else ""

    def lose_node(self, node: str, why: str) -> None:
        """A node is gone, and what was only there is lost."""
        for accepted in list(self._accepted.values()):
            here = {a: at for a, at in accepted.replicas.items() if at == node}
            for attempt in here:
                del accepted.replicas[attempt]
            for attempt in accepted.unsent_at(node):
                self._excused.add(accepted.checkpoint)
                self._lose_part(accepted, attempt, why)
        self._done.pop(node, None)
        self._news.pop(node, None)
        self._told.pop(node, None)

    def lose(self, checkpoint: str, why: str) -> None:
        """A checkpoint can never be published."""
        accepted = self._accepted.pop(checkpoint, None)
        if accepted is not None:
            self._lost[checkpoint] = why
            self.gone.add(checkpoint)
            self._lose(checkpoint)
            self._forget(accepted, is_published=False)

    def lose_stored(self, checkpoint: str) -> None:
        """A checkpoint that was published is not at the destination any more."""
        if checkpoint not in self._accepted:
            self._published[layout.parent(checkpoint)].discard(checkpoint)
            self._lost[checkpoint] = NOT_STORED
            self._excused.add(checkpoint)
            self.gone.add(checkpoint)
            self._lose(checkpoint)
            self.moves_count += 1

    def drop_some(self) -> None:
        """Checkpoints that Ray deleted before their turn never travel."""
        for checkpoint in self.cut.droppable():
            accepted = self._accepted.get(checkpoint)
            if accepted is not None and not accepted.is_complete:
                del self._accepted[checkpoint]
                self.cut.dropped(checkpoint)
                self._forget(accepted, is_published=False)

    # The destination

    def complete(self) -> list[Accepted]:
        """What can be published."""
        return [accepted for accepted in self._accepted.values() if accepted.is_complete]

    def published(self, checkpoint: str) -> None:
        """It is at the destination, whole."""
        self._published[layout.parent(checkpoint)].add(checkpoint)
        self._published_count += 1
        self._arrived(checkpoint)
        accepted = self._accepted.pop(checkpoint, None)
        if accepted is not None:
            self._forget(accepted, is_published=True)

    def deleted(self, checkpoint: str) -> None:
        """It is there no more."""
        self.cut.deleted(checkpoint)
        self._published[layout.parent(checkpoint)].discard(checkpoint)

    # How far it is

    @property
    def is_flushed(self) -> bool:
        """Whether all that was accepted is published, and the state that names it is written."""
        return not self._accepted and self.cut.is_settled and not self.cut.deletable()

    @property
    def is_hopeless(self) -> bool:
        """Whether waiting is of no use: what is held names what is lost."""
        return not self._accepted and bool(self._lost) and self.cut.is_stuck

    def lost_for_good(self) -> dict[str, str]:
        """What was lost and is missed, and why.

        Not where the trial has gone beyond it: after it began again, as its node was lost, or as
        only its latest are kept.
        """
        return {c: why for c, why in self._lost.items() if self._is_missed(c)}

    def _is_missed(self, checkpoint: str) -> bool:
        newest = self.newest_published(layout.parent(checkpoint))
        if layout.by_age(checkpoint) > layout.by_age(newest):
            return True
        return self.keeps_all and checkpoint not in self._excused

    @property
    def lost(self) -> dict[str, str]:
        """All checkpoints that were lost, and why."""
        return dict(self._lost)

    @property
    def is_worth_telling(self) -> bool:
        """Whether anything is on its way, or was lost."""
        return bool(self._accepted or self._lost)

    def progress(self) -> str:
        """How far it is, in words."""
        left_s = max((news.left_s for news in self._news.values()), default=0.0)
        replicated_count = sum(accepted.is_replicated for accepted in self._accepted.values())
        error = next(iter(self._errors()), "")
        return (
            f"{on_their_way(len(self._accepted), sum(n.left_bytes for n in self._news.values()))}"
            f"{f', the oldest for {left_s:.0f} s' if left_s else ''}"
            f"{f', replicated: {replicated_count}' if replicated_count else ''}"
            f"; stored: {self._published_count}"
            f"{f', failed: {len(self._lost)}' if self._lost else ''}"
            f"{f'; {error}' if error else ''}"
        )

    def what_is_left(self) -> str:
        """What is not stored, and why, in words."""
        names = sorted({*self._accepted, *self._lost})
        shown = ", ".join(names[:NAMES_SHOWN_COUNT]) or "the last state"
        more = len(names) - NAMES_SHOWN_COUNT
        why = [*self._lost.values(), *self._errors()]
        return (
            f"not stored: {shown}{f' and {more} more' if more > 0 else ''}"
            f"{f'; {why[0]}' if why else ''}; nodes go on sending what they have staged; restore "
            "the run to go on from what is stored then"
        )

    # Inside

    def _lose(self, checkpoint: str) -> None:
        self.cut.lost(checkpoint)

    def _arrived(self, checkpoint: str) -> None:
        self.cut.stored(checkpoint)

    def _take(self, accepted: Accepted) -> None:
        self._accepted[accepted.checkpoint] = accepted
        self.cut.accepted(accepted.checkpoint)

    def _at(self, node: str, checkpoints: Iterable[str]) -> list[str]:
        """Attempts at these checkpoints that are on a node, and not known to be stored."""
        found = (self._accepted[c] for c in checkpoints if c in self._accepted)
        return [attempt for accepted in found for attempt in accepted.unsent_at(node)]

    def _parts_at(self, node: str) -> dict[str, list[str]]:
        """See `Orders.parts`."""
        noted = set(self._news.get(node, News()).noted)
        return {
            attempt: [*accepted.direct, *accepted.staged]
            for accepted in self._accepted.values()
            for attempt in accepted.unsent_or_replicated_at(node)
            if attempt not in noted
        }

    def _hear_of(self, accepted: Accepted, attempt: str, news: News) -> None:
        if attempt in news.stored:
            accepted.stored[attempt] = news.stored[attempt]
            self.moves_count += 1
        elif attempt in news.failed:
            self._lose_part(accepted, attempt, news.failed[attempt])
        elif attempt in news.missing:
            self._lose_part(accepted, attempt, NOT_STAGED)

    def _lose_part(self, accepted: Accepted, attempt: str, why: str) -> None:
        """A part cannot be sent from where it was to be: its replica is, or all is lost."""
        before = accepted.staged[attempt]
        if not accepted.turn_to_replica(attempt):
            self.lose(accepted.checkpoint, why)
            return
        self.moves_count += 1
        if before in self._done:
            self._done[before][attempt] = False

    def _forget(self, accepted: Accepted, *, is_published: bool) -> None:
        self._hurried.pop(accepted.checkpoint, None)
        self.moves_count += 1
        for attempt, node in (*accepted.staged.items(), *accepted.replicas.items()):
            if node in self._done:
                self._done[node][attempt] = is_published

    def _errors(self) -> list[str]:
        return sorted({news.error for news in self._news.values() if news.error})
