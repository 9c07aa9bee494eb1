"""The driver's side of write-behind: asks the nodes, publishes what arrived, and writes state.

Two threads do this, so that Ray's control loop makes no request: one asks the nodes, the other
writes. What they decide is in `backlog` and `cut`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from tune_sync.behind.arrivals import Arrivals
from tune_sync.behind.nodes import NodeLostError, Nodes
from tune_sync.behind.offered_files import OfferedFiles
from tune_sync.behind.telling import SAY_MEANWHILE_S, Telling
from tune_sync.errors import LeaseLostError, NotStoredError
from tune_sync.homes.sites import DriverHome
from tune_sync.homes.state_records import Corrections, NotYetError
from tune_sync.layout import is_state
from tune_sync.manifest import Manifest
from tune_sync.publisher import Publisher
from tune_sync.sending.backlog import Backlog
from tune_sync.sending.cut import HeldVersion, Write
from tune_sync.sending.orders import News, Orders
from tune_sync.sending.periodic import PeriodicBacklog, View
from tune_sync.worker import Worker

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# How often the nodes are asked; and once somebody waits for the end.
ASK_S, LOOK_S = 0.5, 0.1


class Behind:
    """One run's. Methods may be called from any thread; they return at once, but for `flush`.

    Args:
        home: The destination, for the run.
        publisher: Deletes what may go.
        nodes: The agents.
        check_lease: The fence; makes no request.
        backlog: Decides what travels when; None: all that is reported, at once.
        where: The experiment, for messages.
        corrections: What is put right in state before it is written.
        say_every_s: See `Telling`.

    Attributes:
        refused: Checkpoints that could not be published, and why.
    """

    def __init__(
        self, home: DriverHome, publisher: Publisher, nodes: Nodes,
        check_lease: Callable[[], None] = lambda: None, backlog: Backlog | None = None,
        where: str = "this experiment", corrections: Corrections | None = None, *,
        say_every_s: float = SAY_MEANWHILE_S,
    ) -> None:  # fmt: skip
        self._home = home
        self._publisher = publisher
        self._nodes = nodes
        self._check_lease = check_lease
        self._backlog = backlog or Backlog()
        self._telling = Telling(where, nodes, say_every_s)
        self._view = View()
        self._corrections = Corrections() if corrections is None else corrections
        self.refused: dict[str, Exception] = {}
        self._last_state: tuple[str, Write] | None = None
        self._files = OfferedFiles()
        self._is_writing = self._is_over = False
        self._tables = threading.Condition()
        self._wrote_state_s = float("-inf")
        self._arrivals = Arrivals(home, self._published, self._refuse)
        self._writer = Worker("tune_sync-behind")
        self._ask_s = ASK_S
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
        """Ray deleted it: it goes once no state at the destination names it. See `Cut.doom`."""
        with self._tables:
            self._backlog.doom(checkpoint)

    def spare(self, checkpoint: str) -> bool:
        """Take back `retire_later`; returns whether that was not too late."""
        with self._tables:
            return self._backlog.spare(checkpoint)

    def take_gone(self) -> set[str]:
        """See `Backlog.take_gone`."""
        with self._tables:
            return self._backlog.take_gone()

    def newest_published(self, trial: str) -> str:
        """See `Backlog.newest_published`."""
        with self._tables:
            return self._backlog.newest_published(trial)

    def keep_all(self) -> None:
        """Ray deletes no checkpoint of this run: each that is lost is missed. See `Backlog`."""
        with self._tables:
            self._backlog.keeps_all = not self.edits_state

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
            if names:
                self._last_state = key, write
            if is_state:
                self._backlog.cut.offer(key, write, is_state=names)
            else:
                self._files.offer(key, write)

    def edit(self, state: bytes) -> bytes:
        """The state as it is to be written now. Raises NotYetError."""
        if not self._corrections and not self.edits_state:
            return state
        return self._corrections.apply(state, self._view.records, self._view.unready)

    # Where only each trial's newest travels: see `PeriodicBacklog`.

    @property
    def edits_state(self) -> bool:
        """Whether state is written with other records of checkpoints than Ray's."""
        return isinstance(self._backlog, PeriodicBacklog)

    @contextmanager
    def periodic(self) -> Iterator[PeriodicBacklog | None]:
        """The backlog, for as long as nobody else uses it; None if it is of another kind."""
        with self._tables:
            yield self._backlog if isinstance(self._backlog, PeriodicBacklog) else None

    # The end

    def flush(
        self, timeout_s: float, between: Callable[[], None] = lambda: None, *, is_last: bool = True
    ) -> None:
        """Return when all that was accepted is published and the last state is written.

        Args:
            timeout_s: Give up if nothing moves for so long.
            between: Called again and again while this waits.
            is_last: See `Cut.ended`.

        Raises:
            NotStoredError: Names what is not stored, and why.
        """
        with self._tables:
            self._backlog.ended(is_last=is_last)
            self._ask_s = LOOK_S  # somebody waits for the answers
        moved_s, moves_count = time.monotonic(), -1
        while not self._is_flushed():
            self._check_lease()
            between()
            now_s = time.monotonic()
            with self._tables:
                self._offer_again()
                if self._backlog.moves_count != moves_count:
                    moved_s, moves_count = now_s, self._backlog.moves_count
                if now_s - moved_s > timeout_s or self._is_hopeless():
                    raise NotStoredError(self._backlog.what_is_left())
            self._telling.at_the_end(self._progress)
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
        try:
            self._nodes.close(nodes)
        except Exception as error:  # they find out by themselves
            logger.debug("agents do not answer: %s", error)

    @property
    def is_all_stored(self) -> bool:
        """Whether all that was accepted is published, and the last state is written."""
        with self._tables:
            return self._backlog.is_flushed

    def _offer_again(self) -> None:
        backlog, last = self._backlog, self._last_state
        if last and isinstance(backlog, PeriodicBacklog) and backlog.is_to_be_written_again:
            backlog.cut.offer(*last, is_state=True)

    def _is_flushed(self) -> bool:
        with self._tables:
            return self._backlog.is_flushed and self._files.is_empty and not self._is_writing

    def _is_hopeless(self) -> bool:
        return self._backlog.is_hopeless and self._files.is_empty and not self._is_writing

    # Telling others

    def _progress(self) -> tuple[str, bool]:
        """How far it is, and whether that is worth telling."""
        with self._tables:
            return self._backlog.progress(), self._backlog.is_worth_telling

    def _lost(self) -> dict[str, str]:
        with self._tables:
            return self._backlog.lost

    # Asking the nodes

    def _look(self) -> None:
        while True:
            with self._tables:
                self._tables.wait_for(lambda: self._is_over, self._ask_s)
                if self._is_over:
                    return
                self._backlog.plan(time.monotonic())
                nodes = self._backlog.nodes
            self._ask(nodes)
            self._telling.meanwhile(self._progress, self._lost)
            with self._tables:
                self._backlog.drop_some()
                is_free, self._is_writing = not self._is_writing, True
            if is_free:
                self._writer.add(self._write_some)

    def _ask(self, nodes: Collection[str]) -> None:
        """What was heard is taken up, whoever else does not answer."""
        try:
            answers = self._nodes.exchange(nodes, self._orders)
        except Exception as error:  # Ray itself does not answer
            logger.debug("the nodes cannot be asked: %s", error)
            return
        for node, answer in answers.items():
            self._hear(node, answer)

    def _orders(self, node: str) -> Orders:
        with self._tables:
            return self._backlog.orders(node)

    def _hear(self, node: str, answer: News | Exception) -> None:
        if isinstance(answer, NodeLostError):
            self._lose_node(node, str(answer))
        elif isinstance(answer, Exception):
            logger.debug("the agent of node %s does not answer: %s", node, answer)
        else:
            with self._tables:
                complaint = self._backlog.hear(node, answer)
            if complaint:
                logger.warning("node %s cannot send now, and goes on trying: %s", node, complaint)

    def _lose_node(self, node: str, why: str) -> None:
        with self._tables:
            self._backlog.lose_node(node, why)

    # Writing

    def _write_some(self) -> None:
        try:
            self._look_for_doubted()
            why_not = self._publish_some()
            # One that is refused for ever holds up no state that may not name it.
            self._write_state()
            self._files.write()
            self._delete_some()
            if why_not is not None:
                raise why_not
        except LeaseLostError as error:
            logger.debug("%s", error)  # whoever checks the lease tells
        except Exception as error:  # the next turn tries again
            self._telling.failed(error)
        finally:
            with self._tables:
                self._is_writing = False

    def _look_for_doubted(self) -> None:
        with self._tables:
            doubted = self._backlog.take_doubted()
        gone = [checkpoint for checkpoint in doubted if self._home.info(checkpoint) is None]
        with self._tables:
            for checkpoint in gone:
                self._backlog.lose_stored(checkpoint)

    def _publish_some(self) -> Exception | None:
        """Returns why some of it is still to be published."""
        with self._tables:
            complete = self._backlog.complete()
        try:
            self._arrivals.publish(complete)
        except LeaseLostError:
            raise
        except Exception as error:
            return error
        return None

    def _published(self, checkpoint: str) -> None:
        with self._tables:
            self._backlog.published(checkpoint)

    def _refuse(self, checkpoint: str, error: Exception) -> None:
        self.refused[checkpoint] = error
        with self._tables:
            self._backlog.lose(checkpoint, str(error))

    def _write_state(self) -> None:
        while time.monotonic() - self._wrote_state_s >= self._state_s():
            with self._tables:
                held = self._backlog.cut.take()
                if held is not None and isinstance(self._backlog, PeriodicBacklog):
                    self._view = self._backlog.view()
            if held is None or not self._wrote(held):
                return
            self._wrote_state_s = time.monotonic()
            with self._tables:
                self._backlog.cut.wrote(held)
                self._backlog.moves_count += 1

    def _state_s(self) -> float:
        with self._tables:
            return max(self._home.rewrite_s, self._backlog.state_s)

    def _wrote(self, held: HeldVersion) -> bool:
        try:
            # What a search has made is written after the state that names it, and not without.
            for key in sorted(held.files, key=lambda key: not is_state(key)):
                held.files[key]()
        except NotYetError as error:
            self._require(held, error.trial_ids)
            return False
        except BaseException:
            with self._tables:
                self._backlog.cut.failed(held)
            raise
        return True

    def _require(self, held: HeldVersion, trial_ids: Collection[str]) -> None:
        """A version says that trials have ended: it waits for their last checkpoints."""
        with self._tables:
            if isinstance(self._backlog, PeriodicBacklog):
                needed = [self._backlog.required(self._view.unready[i]) for i in trial_ids]
                self._backlog.cut.require(held, [c for needs in needed for c in needs])

    def _delete_some(self) -> None:
        with self._tables:
            for checkpoint in self._backlog.cut.deletable():
                self._backlog.deleted(checkpoint)
                self._publisher.retire_now(checkpoint)  # from here on it takes it back
