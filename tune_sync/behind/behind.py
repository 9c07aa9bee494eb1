"""The driver's side of write-behind: asks the nodes, publishes what arrived, and writes state.

Two threads do this, so that Ray's control loop makes no request: one asks the nodes, the other
writes. What they decide is in `backlog` and `cut`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Protocol

from tune_sync.errors import (
    DamagedError,
    FixCallError,
    LeaseLostError,
    NotStoredError,
    NotWholeError,
)
from tune_sync.homes.sites import DriverHome
from tune_sync.manifest import Manifest, warn_of_conflicts
from tune_sync.publisher import Publisher
from tune_sync.sending.backlog import Accepted, Backlog
from tune_sync.sending.cut import Write
from tune_sync.sending.orders import News, Orders
from tune_sync.worker import Worker

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# How often the nodes are asked.
ASK_S = 0.5
# Whoever waits for the end looks so often, and is told so often how far it is.
LOOK_S = 0.1
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


class Behind:
    """One run's. Methods may be called from any thread; they return at once, but for `flush`.

    Args:
        home: The destination, for the run.
        publisher: Deletes what may go.
        nodes: The agents.
        check_lease: The fence; makes no request.
    """

    def __init__(
        self, home: DriverHome, publisher: Publisher, nodes: Nodes,
        check_lease: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._home = home
        self._publisher = publisher
        self._nodes = nodes
        self._check_lease = check_lease
        self._backlog = Backlog()
        self._files: dict[str, Write] = {}
        self._is_writing = False
        self._is_over = False
        self._tables = threading.Condition()
        self._wrote_state_s = float("-inf")
        self._writer = Worker("tune_sync-behind")
        self._thread = threading.Thread(target=self._look, name="tune_sync-nodes", daemon=True)
        self._thread.start()

    # What the control loop tells and asks. See `Backlog`.

    def accept(
        self, checkpoint: str, strict: bool, attempts: Collection[str],
        metrics: dict[str, Any] | None,
    ) -> None:  # fmt: skip
        """See `Backlog.accept`."""
        with self._tables:
            self._backlog.accept(checkpoint, strict, attempts, metrics)

    def accept_placed(self, manifest: Manifest) -> None:
        """See `Backlog.accept_placed`."""
        with self._tables:
            self._backlog.accept_placed(manifest)

    def is_known(self, checkpoint: str) -> bool:
        """See `Backlog.is_known`."""
        with self._tables:
            return self._backlog.is_known(checkpoint)

    def hurry(self, checkpoint: str) -> None:
        """See `Backlog.hurry`."""
        with self._tables:
            self._backlog.hurry(checkpoint)

    def check_nodes(self, checkpoint: str) -> None:
        """Someone is about to load it: see at once whether a node that has it is gone."""
        with self._tables:
            nodes = self._backlog.needed_nodes(checkpoint)
        for node in nodes:
            if not self._nodes.is_alive(node):
                self._lose_node(node, f"node {node} is gone")

    def retire_later(self, checkpoint: str) -> None:
        """Ray deleted it: it goes once no state at the destination names it."""
        with self._tables:
            self._backlog.cut.doom(checkpoint)

    def spare(self, checkpoint: str) -> None:
        """Take back `retire_later`."""
        with self._tables:
            self._backlog.cut.spare(checkpoint)

    def take_gone(self) -> set[str]:
        """See `Backlog.take_gone`."""
        with self._tables:
            return self._backlog.take_gone()

    def newest_published(self, trial: str) -> str:
        """See `Backlog.newest_published`."""
        with self._tables:
            return self._backlog.newest_published(trial)

    def why_lost(self, checkpoint: str) -> str:
        """See `Backlog.why_lost`."""
        with self._tables:
            return self._backlog.why_lost(checkpoint)

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
                self._backlog.cut.offer(key, write, is_state=names)
            else:
                self._files[key] = write

    # The end

    def flush(self, timeout_s: float) -> None:
        """Return when all that was accepted is published and the last state is written.

        Args:
            timeout_s: Give up if nothing moves for so long.

        Raises:
            NotStoredError: Names what is not stored, and why.
        """
        with self._tables:
            self._backlog.cut.ended()
        moved_s = said_s = time.monotonic()
        moves_count = -1
        while not self._is_flushed():
            self._check_lease()
            now_s = time.monotonic()
            with self._tables:
                if self._backlog.moves_count != moves_count:
                    moved_s, moves_count = now_s, self._backlog.moves_count
                if now_s - moved_s > timeout_s or self._is_hopeless():
                    raise NotStoredError(self._backlog.what_is_left())
                if now_s - said_s >= SAY_S:
                    logger.info("%s", self._backlog.progress())
                    said_s = now_s
            time.sleep(LOOK_S)
        with self._tables:
            lost = self._backlog.lost_for_good()
        if lost:
            raise NotStoredError("; ".join(f"{c} is lost: {why}" for c, why in lost.items()))

    def close(self, timeout_s: float) -> None:
        """End the threads, and tell the nodes that the run is over. May be called twice.

        Nodes that have something left keep it, and find out by themselves.
        """
        with self._tables:
            self._is_over = True
            nodes = self._backlog.nodes if self._backlog.is_flushed else []
            self._tables.notify_all()
        self._thread.join(timeout_s)
        self._writer.close(timeout_s)
        for node in nodes:
            try:
                self._nodes.exchange(node, Orders(is_closing=True))
            except Exception as error:  # it finds out by itself
                logger.debug("the agent of node %s does not answer: %s", node, error)

    @property
    def is_all_stored(self) -> bool:
        """Whether all that was accepted is published, and the last state is written."""
        with self._tables:
            return self._backlog.is_flushed

    def _is_flushed(self) -> bool:
        with self._tables:
            return self._backlog.is_flushed and not self._files and not self._is_writing

    def _is_hopeless(self) -> bool:
        return self._backlog.is_hopeless and not self._files and not self._is_writing

    # Asking the nodes

    def _look(self) -> None:
        while True:
            with self._tables:
                self._tables.wait_for(lambda: self._is_over, ASK_S)
                if self._is_over:
                    return
                nodes = self._backlog.nodes
            for node in nodes:
                self._ask(node)
            with self._tables:
                self._backlog.drop_some()
                is_free, self._is_writing = not self._is_writing, True
            if is_free:
                self._writer.add(self._write_some)

    def _ask(self, node: str) -> None:
        with self._tables:
            orders = self._backlog.orders(node)
        try:
            news = self._nodes.exchange(node, orders)
        except NodeLostError as error:
            self._lose_node(node, str(error))
        except Exception as error:
            logger.debug("the agent of node %s does not answer: %s", node, error)
        else:
            with self._tables:
                complaint = self._backlog.hear(node, news)
            if complaint:
                logger.warning("node %s cannot send now, and goes on trying: %s", node, complaint)

    def _lose_node(self, node: str, why: str) -> None:
        with self._tables:
            self._backlog.lose_node(node, why)

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
            complete = self._backlog.complete()
        for accepted in complete:
            try:
                self._publish(accepted)
            except (NotWholeError, DamagedError, FixCallError) as error:
                logger.error("cannot publish %s: %s", accepted.checkpoint, error)
                with self._tables:
                    self._backlog.lose(accepted.checkpoint, str(error))

    def _publish(self, accepted: Accepted) -> None:
        checkpoint, committer, manifest = (
            accepted.checkpoint, self._home.committer, accepted.manifest,
        )  # fmt: skip
        if manifest is None:
            placed = committer.place(
                checkpoint, strict=accepted.strict, attempts=accepted.attempts,
                metrics=accepted.metrics,
            )  # fmt: skip
            manifest = placed.manifest
            warn_of_conflicts(checkpoint, placed.conflicts)
        committer.record(manifest)
        with self._tables:
            self._backlog.published(checkpoint)

    def _write_state(self) -> None:
        while time.monotonic() - self._wrote_state_s >= self._home.rewrite_s:
            with self._tables:
                held = self._backlog.cut.take()
            if held is None:
                return
            try:
                for write in held.files.values():
                    write()
            except BaseException:
                with self._tables:
                    self._backlog.cut.failed(held)
                raise
            self._wrote_state_s = time.monotonic()
            with self._tables:
                self._backlog.cut.wrote(held)
                self._backlog.moves_count += 1

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
            deletable = self._backlog.cut.deletable()
            for checkpoint in deletable:
                self._backlog.deleted(checkpoint)
        for checkpoint in deletable:
            self._publisher.retire_now(checkpoint)
