"""A node that stages, its agent, and the driver, as the product has them, without Ray.

Trial and agent are one process each: they are crashed. The driver and the home are on another
host; where a run `drives_here`, the driver is crashed, too. All that has threads elsewhere does its
steps here one after the other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tests.crash.ledger import Contents, with_directories
from tests.crash_staging.driver import Driver
from tests.crash_staging.intake import ByIntake
from tests.crash_staging.kernel import Kernel
from tests.crash_staging.ledger import StagedLedger
from tests.crash_staging.unanswered import Unanswered
from tests.unit.handing import report as hand_over
from tune_sync.behind.arrivals import Arrivals
from tune_sync.behind.left_behind import Claim, find, mark_as, remove_sent, send_left
from tune_sync.behind.memory_home import Memory
from tune_sync.behind.node_sender import NodeSender
from tune_sync.behind.replicas import Replicas
from tune_sync.behind.replicating import Replica, Replicating
from tune_sync.behind.staged_copy import Later, StagedCopies
from tune_sync.behind.staged_send import send_attempt
from tune_sync.behind.staging_home import StagingHome
from tune_sync.errors import StoreUnreachableError
from tune_sync.fastpath.budget import Budget
from tune_sync.homes.commit import Committer
from tune_sync.homes.home import Home, LocalHome
from tune_sync.homes.recorded import newest_of, recorded
from tune_sync.homes.store import LocalStore
from tune_sync.layout import by_age, parent
from tune_sync.manifest import Seal
from tune_sync.sending.backlog import Backlog
from tune_sync.sending.cut import Cut
from tune_sync.sending.orders import News, Orders
from tune_sync.sending.queue import Item
from tune_sync.transfer.upload import CheckpointUpload

WHERE, OWNER, NODE, PEER = "file:///experiment", "run1", "node1", "peer1"
ROOM_BYTES, MEMORY_BYTES, PEER_PROCESS = 1 << 30, 1 << 25, 500
TURNS_COUNT = 8  # more than any story needs until all is published, and told to be


class Agent(NodeSender):
    """Its threads have nothing to do: `step` does it."""

    def __init__(self, run: Run, root: Path, **more: Any) -> None:
        run.agents.append(self)
        self.ledger = run.ledger
        super().__init__(root, run.open_home, ROOM_BYTES, **more)

    def _work(self) -> None: ...

    def _confirm(self, item: Item) -> None: ...

    def step(self) -> None:
        """Confirm, and send, what there is."""
        for item in [i for i in self._queue.items() if not i.is_confirmed]:
            super()._confirm(item)
            if (seal := self._seals.get(item.attempt)) is not None and seal.is_confirmed:
                self.ledger.confirmed.add(item.attempt)
        while (found := self._queue.next()) is not None and self._send(found):
            pass

    def _remove(self, item: Item, later: Later | None) -> bool:
        self.ledger.removing.add(item.attempt)
        return super()._remove(item, later)

    def end(self, *, leave: bool = False) -> None:
        if not leave:
            self.ledger.removing |= {item.attempt for item in self._queue.items()}
        super().end(leave=leave)

    def forget_threads(self) -> None:
        """Its process has died."""
        for worker in (getattr(self, "_confirmer", None), getattr(self, "removing", None)):
            if worker is not None:
                worker.close(0.0)


class _NoAgent:
    """A node's agent, as a trial sees it that does not wait for it."""

    def has_room(self) -> bool:
        return True

    def free_memory(self, trial: str) -> bool:
        return False

    def make_room(self) -> None: ...

    def wake(self) -> None: ...


@dataclass(frozen=True)
class Parts:
    """What a run is made of; a mutant has other ones."""

    agent: Callable[..., Agent] = Agent
    staging: Callable[..., StagingHome] = StagingHome
    to_peer: Callable[..., Any] = ByIntake
    arrivals: Callable[..., Arrivals] = Arrivals
    cut: Callable[[], Cut] | None = None
    forgets: str = ""


AS_IT_IS = Parts()


class Run:
    """Steps of stories.

    Args:
        kernel: Below its root are `node` and `home`.
        ledger: Filled as promises are made.
        parts: What it is made of.
        backlog: What the driver knows.
        is_killed: There was no power cut before.
    """

    def __init__(
        self, kernel: Kernel, ledger: StagedLedger, parts: Parts = AS_IT_IS,
        backlog: Backlog | None = None, *, is_killed: bool = True,
    ) -> None:  # fmt: skip
        base = Path(kernel.root)
        self.kernel, self.ledger, self.parts = kernel, ledger, parts
        self.staging, self.home = base / "node", LocalHome(base / "home")
        self.root, self.peer_base = self.staging / OWNER / NODE, base / "peer"
        self.is_replicated = False
        self._replicas: Replicas | None = None
        self.backlog = copy.deepcopy(backlog) if backlog is not None else Backlog()
        if parts.cut is not None:
            self.backlog.cut = parts.cut()
        self.agents: list[Agent] = []
        self.drives_here = False
        self.refusals_count, self.is_killed, self.is_alone = 0, is_killed, False
        self.unanswered: dict[str, bool] = {}  # see `Unanswered`
        self._claims: list[Claim] = []
        self._trials_count = 1
        self._trial: StagingHome | None = None

    # A trial

    def report(
        self, checkpoint: str, contents: Contents, *, rank: int = 0, ranks_count: int = 1
    ) -> None:
        """Write files through the storage filesystem, as Ray does; and seal."""

        def write(staging: StagingHome) -> CheckpointUpload:
            upload = CheckpointUpload(staging, checkpoint, rank)
            for path, data in contents.items():
                if data is None:
                    upload.make_dir(path)
                    continue
                with upload.open(path) as stream:
                    stream.write(data)
            upload.copied(ranks_count)
            assert upload.seal()
            return upload

        self._report(checkpoint, contents, ranks_count, write)

    def begin(self, checkpoint: str, contents: Contents) -> None:
        """Write files that are never reported."""
        self.ledger.place_begins(checkpoint, with_directories(contents))
        with self.kernel.as_process(self._trials_count):
            upload = CheckpointUpload(self._staging(), checkpoint, 0)
            for path, data in contents.items():
                with upload.open(path) as stream:
                    stream.write(data)
            upload.send_batch()

    def give(
        self, checkpoint: str, contents: Contents, links: dict[str, str] | None = None
    ) -> None:
        """Fill a directory that is handed over, as `staged_checkpoint` does."""
        whole = contents | {new: contents[old] for new, old in (links or {}).items()}

        def hand(staging: StagingHome) -> CheckpointUpload:
            made = staging.make_directory()
            assert made is not None
            for path, data in with_directories(contents).items():
                if data is None:
                    (made / path).mkdir(parents=True, exist_ok=True)
            for path, data in contents.items():
                if data is not None:
                    (made / path).parent.mkdir(parents=True, exist_ok=True)
                    with open(made / path, "wb", buffering=0) as file:
                        file.write(data)
            for new, old in (links or {}).items():
                (made / new).hardlink_to(made / old)
            return hand_over(staging, made, checkpoint)

        self._report(checkpoint, whole, 1, hand)

    def _report(
        self, checkpoint: str, contents: Contents, ranks_count: int,
        write: Callable[[StagingHome], CheckpointUpload],
    ) -> None:  # fmt: skip
        part, parts = with_directories(contents), self.ledger.parts.setdefault(checkpoint, [])
        parts.append(part)
        whole: Contents = {}
        for one in parts:
            whole |= one
        self.ledger.place_begins(checkpoint, whole)
        if ranks_count == 1:
            self.ledger.alone.add(checkpoint)
        with self.kernel.as_process(self._trials_count):
            upload = write(self._staging())
        reported = self.ledger.reported.setdefault(checkpoint, [])
        reported.append(upload.attempt)
        if len(reported) == ranks_count:
            self.ledger.accepted.add(checkpoint)
            where = f"{NODE}@{PEER}" if self.is_replicated else NODE
            self.backlog.accept(checkpoint, False, [f"{a}@{where}" for a in reported], None)
            self.ledger.replicated |= {checkpoint} if self.is_replicated else set()

    def _staging(self) -> StagingHome:
        if self._trial is None:
            mark_as(self.root, WHERE)
            self._trial = self.parts.staging(
                self.home, self.root, _NoAgent(), NODE, replicating=self._replicating()
            )
        return self._trial

    def another_trial(self) -> None:
        """The process of the trial ends, and another one goes on."""
        self._end_trial()

    def _end_trial(self) -> None:
        self.kernel.kill(self._trials_count)
        self._trials_count += 2
        self._trial = None

    # The node's agent

    def open_home(self) -> Home:
        """The destination, as a node reaches it."""
        if self.refusals_count:
            self.refusals_count -= 1
            raise StoreUnreachableError("it does not answer")
        return cast(Home, Unanswered(self.home, self.unanswered))

    def start_agent(self) -> Agent:
        """Start it, or another one after it was killed."""
        self.lose_agent()
        with self.kernel.as_process(2 * len(self.agents) + 2):
            self._claims.append(Claim(self.root, WHERE))
            return self.parts.agent(self, self.root)

    def lose_agent(self) -> None:
        """It is killed, if there is one."""
        for agent in self.agents:
            agent.forget_threads()
        for claim in self._claims:
            if claim._lock is not None:
                claim._lock.close()

    @property
    def agent(self) -> Agent:
        """The one that lives."""
        return self.agents[-1]

    # Another node, which has replicas

    def start_peer(self) -> None:
        """Start the other node's agent, or another one after it was killed."""
        with self.kernel.elsewhere():
            for name in ("shm", "disk"):
                (self.peer_base / name).mkdir(parents=True, exist_ok=True)
        self.is_replicated = True
        budget = Budget(self.peer_base / "shm", MEMORY_BYTES)
        memory = Memory(budget.folder / OWNER / PEER, budget, 2)
        root = self.peer_base / "disk" / OWNER / PEER
        with self.kernel.as_process(PEER_PROCESS):
            self._claims += [Claim(root, WHERE), Claim(memory.root, WHERE)]
            self.peer = self.parts.agent(self, root, memory=memory.root, only_expected=True)
            self._replicas = Replicas(
                root, memory, self.peer.free_memory, self.peer.forget, self.peer.has_room
            )

    def copy(self, copies: StagedCopies, checkpoint: str, seal: Seal) -> Replica:
        """See `Replicator.copy`."""
        with self.kernel.as_process(PEER_PROCESS):
            home = self.parts.to_peer(self._replicas, seal, "memory")
            send_attempt(copies, checkpoint, seal, home)
            self.peer.wake()
        return Replica(PEER)

    def _replicating(self) -> Replicating | None:
        return Replicating(self, lambda attempt: False) if self.is_replicated else None

    def lose_node(self) -> None:
        """The driver hears that the node that staged is gone."""
        self.backlog.lose_node(NODE, "it is gone")

    def peer_turns(self) -> None:
        """As `turns`, with the other node."""
        for _ in range(TURNS_COUNT):
            with self.kernel.as_process(PEER_PROCESS):
                news = self.peer.exchange(self.backlog.orders(PEER))
                self.peer.step()
            with self.kernel.elsewhere():
                self.backlog.hear(PEER, news)
                Driver(self).work()

    def end_peer(self) -> None:
        """As `end`, with the other node."""
        with self.kernel.as_process(PEER_PROCESS):
            self.peer.exchange(Orders(is_closing=True))
            self.peer.end()
        self._tidy_home()

    # The driver

    def turn(self) -> News:
        """Driver and agent exchange what they know; then each does what there is."""
        with self.kernel.as_process(2 * len(self.agents)):
            news = self.agent.exchange(self.backlog.orders(NODE))
            self.agent.step()
        with self._driving():
            self.backlog.hear(NODE, news)
            Driver(self).work()
        return news

    def _driving(self) -> AbstractContextManager[None]:
        """What the driver does meanwhile."""
        return nullcontext() if self.drives_here else self.kernel.elsewhere()

    def state(self, *names: str) -> None:
        """Ray has made a state, which names checkpoints."""
        Driver(self).offer_state(*names)

    def turns(self) -> None:
        """Until all is published, and the node has heard of it."""
        for _ in range(TURNS_COUNT):
            if self.backlog.is_flushed:
                break
            self.turn()
        self.turn()

    def end(self) -> None:
        """The driver says that the run is over."""
        with self.kernel.as_process(2 * len(self.agents)):
            self.agent.exchange(Orders(is_closing=True))
            self.agent.end()
        self._tidy_home()

    def go_on_alone(self) -> None:
        """The driver is dead: the agent sends all, and ends."""
        self.is_alone = True
        with self.kernel.as_process(2 * len(self.agents)):
            self.agent.go_on_alone()
            self.agent.step()
            self.ledger.removing |= set(self.agent.status().stored)
            self.agent.end(leave=True)
            remove_sent([self.root])

    def _tidy_home(self) -> None:
        with self._driving():
            self.home.committer.sweep()

    # The next run

    def restore(self) -> None:
        """The driver is dead, and so is the agent: the next run has the node send what is left."""
        self._end_trial()
        self.lose_agent()
        store = LocalStore(self.home.root)
        newest = newest_of(recorded(store))

        def is_wanted(checkpoint: str) -> bool:
            return by_age(checkpoint) > by_age(newest.get(parent(checkpoint), ""))

        with self.kernel.as_process(self._trials_count):
            for left in find(self.staging):
                with left.taken() as is_free:
                    assert is_free
                    send_left(left, self.home, is_wanted)
        with self.kernel.elsewhere():
            Committer(store, "next owner").recover()

    def close(self) -> None:
        """All processes end."""
        with suppress(IndexError):
            self.lose_agent()
