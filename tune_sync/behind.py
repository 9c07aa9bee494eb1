"""The driver's side of write-behind: what was accepted, where it is, and what may be written when.

A checkpoint is *accepted* when Ray registers it. It is published once all its parts are stored at
the destination, and the state that names it is written after that (see `cut`). Two threads do
this, so that Ray's control loop makes no request: one asks the nodes, the other writes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tune_sync import layout
from tune_sync.cut import Cut, Write, names_of
from tune_sync.errors import (
    DamagedError,
    FixCallError,
    LeaseLostError,
    NotStoredError,
    NotWholeError,
)
from tune_sync.manifest import Manifest
from tune_sync.publisher import Publisher
from tune_sync.send_orders import AT, News, Orders
from tune_sync.send_queue import by_age
from tune_sync.sites import DriverHome
from tune_sync.worker import Worker

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# How often the nodes are asked, and how often whoever waits is told how far it is.
LOOK_S = 0.5
SAY_S = 5.0


class NodeLostError(Exception):
    """A node is gone, and with it what was staged there."""


class Nodes(Protocol):
    """The agents of all nodes. See `agents.node_agents`."""

    def exchange(self, node: str, orders: Orders) -> News:
        """Tell a node's agent, and hear from it.

        Raises:
            NodeLostError: The node is gone.
            Exception: It does not answer just now.
        """

    def is_alive(self, node: str) -> bool:
        """Whether a node is there. Within milliseconds."""


@dataclass(slots=True)
class Accepted:
    """A checkpoint that Ray knows, and that is not published.

    Attributes:
        checkpoint: Its key.
        strict: See `manifest.unite`.
        metrics: See `Manifest.metrics`.
        direct: Attempts that were sealed at the destination.
        staged: Attempt -> the node where it is.
        stored: Attempt, of those -> its id at the destination.
        manifest: If it is placed already.
    """

    checkpoint: str
    strict: bool
    metrics: dict[str, Any] | None
    direct: list[str] = field(default_factory=list)
    staged: dict[str, str] = field(default_factory=dict)
    stored: dict[str, str] = field(default_factory=dict)
    manifest: Manifest | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all its parts are at the destination."""
        return len(self.stored) == len(self.staged)

    @property
    def attempts(self) -> list[str]:
        """Its parts' ids there."""
        return [*self.direct, *self.stored.values()]


class Behind:
    """One run's. Methods may be called from any thread, and return at once, but for `flush`.

    Args:
        home: The destination, for the run.
        publisher: Deletes what may go.
        nodes: The agents.
        check_lease: The fence.
    """

    def __init__(
        self, home: DriverHome, publisher: Publisher, nodes: Nodes,
        check_lease: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._home = home
        self._publisher = publisher
        self._nodes = nodes
        self._check_lease = check_lease
        self._cut = Cut()
        self._accepted: dict[str, Accepted] = {}
        self._published: dict[str, set[str]] = defaultdict(set)  # by trial
        self._hurried: dict[str, None] = {}
        self._done: dict[str, dict[str, bool]] = defaultdict(dict)  # by node: is it published
        self._lost: dict[str, str] = {}
        self._gone: set[str] = set()  # lost, and Ray still has them in its record
        self._files: dict[str, Write] = {}
        self._news: dict[str, News] = {}
        self._is_writing = False
        self._is_over = False
        self._moved_s = time.monotonic()
        self._tables = threading.Condition()
        self._writer = Worker("tune_sync-behind")
        self._thread = threading.Thread(target=self._look, name="tune_sync-nodes", daemon=True)
        self._thread.start()

    # What the control loop tells

    def accept(
        self, checkpoint: str, strict: bool, attempts: Collection[str],
        metrics: dict[str, Any] | None,
    ) -> None:  # fmt: skip
        """Take a checkpoint of which some parts are only staged."""
        accepted = Accepted(checkpoint, strict, metrics)
        for reported in attempts:
            attempt, _, node = reported.partition(AT)
            if node:
                accepted.staged[attempt] = node
            else:
                accepted.direct.append(attempt)
        with self._tables:
            self._accepted[checkpoint] = accepted
            self._cut.accepted(checkpoint)
            for node in accepted.staged.values():
                self._done.setdefault(node, {})
            self._tables.notify_all()

    def accept_placed(self, manifest: Manifest) -> None:
        """Take a checkpoint that is in its place, to be recorded."""
        checkpoint = manifest.checkpoint
        with self._tables:
            self._accepted[checkpoint] = Accepted(checkpoint, False, None, manifest=manifest)
            self._cut.accepted(checkpoint)

    def is_accepted(self, checkpoint: str) -> bool:
        """Whether it is on its way."""
        with self._tables:
            return checkpoint in self._accepted

    def is_known(self, checkpoint: str) -> bool:
        """Whether it is on its way, or was published by this run."""
        with self._tables:
            published = self._published.get(layout.parent(checkpoint), ())
            return checkpoint in self._accepted or checkpoint in published

    def published(self, checkpoint: str) -> None:
        """Note one that was published in another way."""
        with self._tables:
            self._published[layout.parent(checkpoint)].add(checkpoint)

    def hurry(self, checkpoint: str) -> None:
        """Someone is about to load it."""
        with self._tables:
            if checkpoint in self._accepted:
                self._hurried[checkpoint] = None
                self._tables.notify_all()

    def check_nodes(self, checkpoint: str) -> None:
        """Someone is about to load it: see at once whether the node that has it is gone."""
        with self._tables:
            accepted = self._accepted.get(checkpoint)
            unsent = set(accepted.staged) - set(accepted.stored) if accepted else set()
            nodes = {accepted.staged[attempt] for attempt in unsent} if accepted else set()
        for node in nodes:
            if not self._nodes.is_alive(node):
                self._lose_node(node, f"node {node} is gone")

    def retire_later(self, checkpoint: str) -> None:
        """Ray deleted it: it goes once no state at the destination names it."""
        with self._tables:
            self._cut.doom(checkpoint)

    def spare(self, checkpoint: str) -> None:
        """Take back `retire_later`."""
        with self._tables:
            self._cut.spare(checkpoint)

    def offer(self, key: str, write: Write, *, is_state: bool, names: bool = False) -> None:
        """Take a file of the driver, to be written when it may be.

        Args:
            key: Of the file.
            write: Writes it; called again after an error.
            is_state: It belongs to the experiment's state, not to one trial.
            names: It names checkpoints.
        """
        with self._tables:
            if is_state:
                self._cut.offer(key, write, is_state=names)
            else:
                self._files[key] = write
            self._tables.notify_all()

    def take_gone(self) -> set[str]:
        """Checkpoints that were lost, and that Ray has to forget now. Each is told once."""
        with self._tables:
            gone, self._gone = self._gone, set()
            for checkpoint in gone:
                self._cut.doom(checkpoint)
        return gone

    def newest_published(self, trial: str) -> str:
        """The newest checkpoint of a trial's directory that is at the destination, or ""."""
        with self._tables:
            return max(self._published.get(trial, ()), key=by_age, default="")

    def why_lost(self, checkpoint: str) -> str:
        """Why a checkpoint is lost; "" if it is not."""
        with self._tables:
            return self._lost.get(checkpoint, "")

    # The end

    def flush(self, timeout_s: float) -> None:
        """Return when all that was accepted is published and the last state is written.

        Args:
            timeout_s: Give up if nothing moves for so long.

        Raises:
            NotStoredError: Names what is not stored, and why.
        """
        with self._tables:
            self._cut.ended()
            self._moved_s = time.monotonic()
        said_s = time.monotonic()
        while not self._is_flushed():
            self._check_lease()
            now_s = time.monotonic()
            with self._tables:
                idle_s = now_s - self._moved_s
            if idle_s > timeout_s or self._is_hopeless():
                raise NotStoredError(self._what_is_left())
            if now_s - said_s >= SAY_S:
                logger.info("%s", self._progress())
                said_s = now_s
            time.sleep(LOOK_S / 5)
        self._check_lost()

    def close(self, timeout_s: float) -> None:
        """End the threads, and tell the nodes that the run is over."""
        with self._tables:
            self._is_over = True
            nodes = list(self._done)
            self._tables.notify_all()
        self._thread.join(timeout_s)
        self._writer.close(timeout_s)
        for node in nodes:
            try:
                self._nodes.exchange(node, Orders(is_closing=True))
            except Exception as error:  # it finds out by itself
                logger.debug("the agent of node %s does not answer: %s", node, error)

    # Asking the nodes

    def _look(self) -> None:
        while True:
            with self._tables:
                self._tables.wait_for(lambda: self._is_over, LOOK_S)
                if self._is_over:
                    return
                nodes = list(self._done)
            for node in nodes:
                self._ask(node)
            self._drop_some()
            with self._tables:
                todo = not self._is_writing
                self._is_writing = True
            if todo:
                self._writer.add(self._write_some)

    def _ask(self, node: str) -> None:
        with self._tables:
            orders = self._orders(node)
        try:
            news = self._nodes.exchange(node, orders)
        except NodeLostError as error:
            self._lose_node(node, str(error))
        except Exception as error:
            logger.debug("the agent of node %s does not answer: %s", node, error)
        else:
            with self._tables:
                self._hear(node, news)

    def _orders(self, node: str) -> Orders:
        pinned, held_back = self._cut.pinned(), self._cut.held_back()
        first = dict.fromkeys((*self._hurried, *pinned))
        done = self._done[node]
        return Orders(
            expected=self._here(node, self._accepted),
            wanted=self._here(node, first),
            published=[a for a, is_published in done.items() if is_published],
            dropped=[a for a, is_published in done.items() if not is_published],
            held_back=self._here(node, held_back - first.keys()),
        )

    def _here(self, node: str, checkpoints: Iterable[str]) -> list[str]:
        """Attempts at these checkpoints that are on a node, and not known to be stored."""
        accepted = (self._accepted[c] for c in checkpoints if c in self._accepted)
        return [
            attempt
            for found in accepted
            for attempt, where in found.staged.items()
            if where == node and attempt not in found.stored
        ]

    def _hear(self, node: str, news: News) -> None:
        before = self._news.get(node, News())
        if news.sent_bytes != before.sent_bytes:
            self._moved_s = time.monotonic()
        self._news[node] = news
        if news.error and not before.error:
            logger.warning("node %s cannot send now, and goes on trying: %s", node, news.error)
        self._done[node] = {a: p for a, p in self._done[node].items() if a in set(news.held)}
        for accepted in list(self._accepted.values()):
            for attempt, where in list(accepted.staged.items()):
                if where == node:
                    self._hear_of(accepted, attempt, news)

    def _hear_of(self, accepted: Accepted, attempt: str, news: News) -> None:
        if attempt in news.stored:
            accepted.stored[attempt] = news.stored[attempt]
        elif attempt in news.failed:
            self._lose(accepted, news.failed[attempt])
        elif attempt in news.missing:
            self._lose(accepted, f"{attempt} is no longer in the staging directory of its node")

    def _lose_node(self, node: str, why: str) -> None:
        with self._tables:
            for accepted in list(self._accepted.values()):
                unsent = set(accepted.staged) - set(accepted.stored)
                if any(accepted.staged[attempt] == node for attempt in unsent):
                    self._lose(accepted, why)
            self._done.pop(node, None)
            self._news.pop(node, None)

    def _lose(self, accepted: Accepted, why: str) -> None:
        checkpoint = accepted.checkpoint
        if self._accepted.pop(checkpoint, None) is not None:
            self._lost[checkpoint] = why
            self._gone.add(checkpoint)
            self._cut.lost(checkpoint)
            self._forget(accepted, is_published=False)

    def _drop_some(self) -> None:
        """Checkpoints that Ray deleted before their turn never travel."""
        with self._tables:
            for checkpoint in self._cut.droppable():
                accepted = self._accepted.get(checkpoint)
                if accepted is not None and not accepted.is_complete:
                    del self._accepted[checkpoint]
                    self._cut.dropped(checkpoint)
                    self._forget(accepted, is_published=False)

    def _forget(self, accepted: Accepted, *, is_published: bool) -> None:
        self._hurried.pop(accepted.checkpoint, None)
        self._moved_s = time.monotonic()
        for attempt, node in accepted.staged.items():
            if node in self._done:
                self._done[node][attempt] = is_published

    # Writing

    def _write_some(self) -> None:
        try:
            self._publish_some()
            self._write_state()
            self._write_files()
            self._delete_some()
        except LeaseLostError as error:
            logger.debug("%s", error)  # whoever checks the lease tells
        except Exception as error:  # the next turn tries again
            logger.warning("cannot write to the destination now, goes on trying: %s", error)
        finally:
            with self._tables:
                self._is_writing = False

    def _publish_some(self) -> None:
        with self._tables:
            complete = [a for a in self._accepted.values() if a.is_complete]
        for accepted in complete:
            try:
                self._publish(accepted)
            except (NotWholeError, DamagedError, FixCallError) as error:
                logger.error("cannot publish %s: %s", accepted.checkpoint, error)
                with self._tables:
                    self._lose(accepted, str(error))

    def _publish(self, accepted: Accepted) -> None:
        checkpoint, committer = accepted.checkpoint, self._home.committer
        manifest = accepted.manifest
        if manifest is None:
            placed = committer.place(
                checkpoint, strict=accepted.strict, attempts=accepted.attempts,
                metrics=accepted.metrics,
            )  # fmt: skip
            manifest = placed.manifest
            for name, *ranks in placed.conflicts:
                message = "%s: ranks %s report different bytes for %s; one of them is stored"
                logger.warning(message, checkpoint, ranks, name)
        committer.record(manifest)
        with self._tables:
            self._accepted.pop(checkpoint, None)
            self._cut.stored(checkpoint)
            self._published[layout.parent(checkpoint)].add(checkpoint)
            self._forget(accepted, is_published=True)

    def _write_state(self) -> None:
        while True:
            with self._tables:
                held = self._cut.take()
            if held is None:
                return
            try:
                for write in held.files.values():
                    write()
            except BaseException:
                with self._tables:
                    self._cut.failed(held)
                raise
            with self._tables:
                self._cut.wrote(held)
                self._moved_s = time.monotonic()

    def _write_files(self) -> None:
        with self._tables:
            files, self._files = self._files, {}
        while files:
            key, write = next(iter(files.items()))
            try:
                write()
            except BaseException:
                with self._tables:
                    self._files = {**files, **self._files}
                raise
            del files[key]

    def _delete_some(self) -> None:
        with self._tables:
            deletable = self._cut.deletable()
        for checkpoint in deletable:
            self._publisher.retire_now(checkpoint)
            with self._tables:
                self._cut.deleted(checkpoint)
                self._published[layout.parent(checkpoint)].discard(checkpoint)

    # How far it is

    def _is_flushed(self) -> bool:
        with self._tables:
            left = self._accepted or self._files or self._is_writing
            return not left and self._cut.is_settled and not self._cut.deletable()

    def _is_hopeless(self) -> bool:
        """Whether all is stored that can be, and the last state names something that is lost."""
        with self._tables:
            left = self._accepted or self._files or self._is_writing
            return bool(not left and self._lost and self._cut.is_stuck)

    def _check_lost(self) -> None:
        """Raise if something was lost that its trial has not gone beyond."""
        with self._tables:
            lost = {
                checkpoint: why
                for checkpoint, why in self._lost.items()
                if by_age(checkpoint)
                > by_age(max(self._published.get(layout.parent(checkpoint), ()), key=by_age,
                             default=""))
            }  # fmt: skip
        if lost:
            raise NotStoredError("; ".join(f"{c}: {why}" for c, why in lost.items()))

    def _progress(self) -> str:
        with self._tables:
            count = len(self._accepted)
            size_bytes = sum(news.left_bytes for news in self._news.values())
            errors = sorted({news.error for news in self._news.values() if news.error})
        why = f"; {errors[0]}" if errors else ""
        return f"{count} checkpoints ({size_bytes / 1e6:.0f} MB) are on their way{why}"

    def _what_is_left(self) -> str:
        with self._tables:
            names = names_of([*self._accepted, *self._lost])
            why = sorted({n.error for n in self._news.values() if n.error} | {*self._lost.values()})
        left = f"not stored: {names or 'the last state'}"
        return f"{left}; {why[0]}" if why else left
