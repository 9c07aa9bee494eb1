"""`StagingHome`: checkpoints go to this node's memory or disk first; an agent sends them on.

Everything else goes to the destination at once. What is sealed here survives the process that
wrote it, not the node.
"""

from __future__ import annotations

import builtins
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from tune_sync import guard, layout
from tune_sync.behind.compared_copies import ComparedCopies
from tune_sync.behind.memory_home import Memory, MemoryHome
from tune_sync.behind.node_copies import Brought, Copy, FarCopies, NodeCopies
from tune_sync.behind.node_disk import NodeDisk
from tune_sync.behind.replicating import Replica, Replicating
from tune_sync.behind.settling import Sender, Settling
from tune_sync.behind.spilling_home import KEPT_COUNT, SpillingHome
from tune_sync.errors import NotWholeError, StoreFullError, SyncTimeoutError
from tune_sync.homes.home import Home, Piece
from tune_sync.homes.store import Info
from tune_sync.manifest import Conflicts, FileEntry, Seal
from tune_sync.sending.orders import AT

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# How often whoever waits for room, or for a checkpoint to arrive, looks again.
LOOK_S = 0.3
# How often who waits for a checkpoint asks whether it is lost: every agent is asked.
ASK_S = 2.0
# How often it says so.
SAY_S = 15.0
# So many copies that go just as they are read are followed by the destination.
COPIES_COUNT = 3
# How often a process says that memory is full: that goes on as it is.
SAY_MEMORY_S = 3600.0


class StagingAgent(Sender, Protocol):
    """What sends on what is staged on this node. See `agents.node_agent`."""

    def has_room(self) -> bool:
        """Whether another checkpoint may be staged."""

    def make_room(self) -> None:
        """The disk is full: remove what need not stay."""

    def free_memory(self, trial: str) -> bool:
        """Remove what need not be in memory, of a trial or of all (""); whether it did."""

    def wake(self) -> None:
        """Something was sealed. Does not wait."""

    def is_stored(self, attempt: str) -> bool:
        """Whether an attempt is stored; somebody waits for it, so that it is sent."""


class StagingHome:
    """See `home.Home`. Methods may be called from any thread.

    Args:
        destination: Where everything goes in the end.
        root: The run's staging directory on this node.
        agent: Sends on what is staged.
        node: The Ray node's id.
        memory: Where to stage first; what finds no room there goes to `root`.
        stays_here: What finds no room in memory goes to the destination, as that is on this node.
        checkpoint_depth: See `layout.classify`.
        timeout_s: How long to wait for room, and for a checkpoint that is not here to arrive.
        settling: `seal` waits so for the attempt to be stored; None: not at all.
        replicating: `seal` returns once another node has the attempt too.
        far: Where to read what is neither here nor at its destination yet.
        brought: Brings what is elsewhere to this node, once for all who read it here.
        why_lost: Why a checkpoint will never arrive, as far as the driver has told; else "".
        clock: Monotonic seconds.
        sleep: Waits for seconds.
    """

    in_place = True
    keeps_chunks = False

    def __init__(
        self, destination: Home, root: Path, agent: StagingAgent, node: str, *,
        memory: Memory | None = None, stays_here: bool = False,
        checkpoint_depth: int = 1, timeout_s: float = 1800.0,
        settling: Settling | None = None, replicating: Replicating | None = None,
        far: FarCopies | None = None, brought: Brought | None = None,
        why_lost: Callable[[str], str] = lambda checkpoint: "",
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.rewrite_s = destination.rewrite_s
        self._destination = destination
        self._disk = NodeDisk(root, "", checkpoint_depth)
        self._made: list[Path] = []
        self._last_bytes = 0
        self._made_lock = threading.Lock()
        self._local = SpillingHome(
            self._disk, destination, node,
            make_room=agent.make_room, wait_for_room=self._wait_for_room,
            timeout_s=timeout_s, clock=clock, sleep=sleep,
        )  # fmt: skip
        self._copies = NodeCopies(root)
        self._has_disk_below = memory is not None and not stays_here
        self._memory: MemoryHome | None = None
        if memory is not None:
            self._memory = MemoryHome(memory, agent.free_memory, checkpoint_depth)
            below = destination if stays_here else self._local
            instead = f"is staged on the disk, in {root}" if not stays_here else "goes to its place"
            self._local = SpillingHome(
                self._memory, below, node,
                instead=instead, say_s=SAY_MEMORY_S, timeout_s=0.0, clock=clock, sleep=sleep,
            )  # fmt: skip
            self._copies = NodeCopies(memory.root, root)
        self._here = ComparedCopies(self._copies, destination)
        self._agent = agent
        self._depth = checkpoint_depth
        self._timeout_s = timeout_s
        self._settling, self._replicating = settling, replicating
        self._far, self._brought = far, brought
        self._far_found, self._brought_as = dict[str, Copy](), ""
        self._replicas: dict[str, Replica] = {}
        self._replicas_lock = threading.Lock()
        self._why_lost = why_lost
        self._clock, self._sleep = clock, sleep

    def info(self, key: str) -> Info | None:
        """See `Home.info`. Waits for a checkpoint that is on its way."""
        if key == layout.MARKER:  # asked in every report, whether the destination answers or not
            return Info(key, False, 0, 0.0)
        checkpoint = self._checkpoint(key)
        if not checkpoint:
            return None if self._hides(key) else self._destination.info(key)
        for copy in self._to_ask(checkpoint, partial(self._find, afresh=key == checkpoint)):
            with suppress(FileNotFoundError):
                return copy.info(key)
        return self._destination.info(key)

    def list(self, key: str, recursive: bool) -> list[Info]:
        """See `Home.list`. Waits as `info` does."""
        checkpoint = self._checkpoint(key)
        for copy in self._to_ask(checkpoint, partial(self._find, afresh=key == checkpoint)):
            with suppress(FileNotFoundError):
                return copy.list(key, recursive)
        return self._destination.list(key, recursive)

    def read(self, key: str, offset_bytes: int, length_bytes: int) -> bytes | memoryview:
        """See `Home.read`."""
        for copy in self._to_ask(self._checkpoint(key), self._known_copy):
            with suppress(FileNotFoundError):
                return copy.read(key, offset_bytes, length_bytes)
        return self._destination.read(key, offset_bytes, length_bytes)

    def read_many(self, keys: Sequence[str]) -> builtins.list[bytes]:
        """See `Home.read_many`."""
        checkpoint = self._checkpoint(keys[0]) if keys else ""
        for copy in self._to_ask(checkpoint, self._known_copy):
            with suppress(FileNotFoundError):
                return [bytes(copy.read(key)) for key in keys]
        return self._destination.read_many(keys)

    @contextmanager
    def held(self, checkpoint: str) -> Iterator[Path | None]:
        """The directory of a copy that is on this node, and stays meanwhile; None without one."""
        is_one = self._checkpoint(checkpoint) == checkpoint  # and no directory inside of one
        copy = self._here.whole(checkpoint) if is_one else None
        if copy is None and self._brought is not None and is_one:
            self._find(checkpoint)  # waits until there is something to be brought
            copy = self._brought.whole(checkpoint)
        with copy.held() if copy is not None else nullcontext() as directory:
            yield directory

    def make_dir(self, key: str) -> None:
        """See `Home.make_dir`."""
        self._destination.make_dir(key)

    def remove(self, key: str) -> None:
        """See `Home.remove`."""
        self._destination.remove(key)

    def begin(self, checkpoint: str) -> str:
        """See `Home.begin`. Waits for room, if this process has no bytes in staging already.

        Raises:
            SyncTimeoutError: There was none for `sync_timeout`.
        """
        # What is made on the disk, to be handed over, is faster there than copied into memory.
        return self._local.begin(checkpoint, is_there=self._has_disk_below and self._has_begun())

    def begin_file(self) -> str:
        """See `Home.begin_file`."""
        return self._destination.begin_file()

    def expect(self, key: str, size_bytes: int) -> None:
        """See `Home.expect`."""
        self._of(key).expect(key, size_bytes)

    def write(self, key: str, offset_bytes: int, data: bytes | memoryview) -> None:
        """See `Home.write`."""
        self._of(key).write(key, offset_bytes, data)

    def write_batch(self, pieces: Sequence[Piece], data: bytes | bytearray | memoryview) -> None:
        """See `Home.write_batch`."""
        self._of(pieces[0].key).write_batch(pieces, data)

    def make_directory(self, size_bytes: int = 0) -> Path | None:
        """See `Home.make_directory`. Waits for room; None if the disk has none at all.

        It is in memory, if there is room for so much, or for what this process handed over last.

        Raises:
            SyncTimeoutError: See `begin`.
        """
        expected_bytes = size_bytes or self._last_bytes
        in_memory = self._memory is not None and expected_bytes
        if in_memory and (made := self._local.make_here(expected_bytes)) is not None:
            return made
        self._wait_for_room("a checkpoint that is to be made")
        try:
            made = self._disk.make_directory()
        except StoreFullError as error:
            logger.warning("a checkpoint is not made where it is staged: %s", error)
            return None
        with self._made_lock:
            self._made = [*(path for path in self._made if path.exists()), made]
        return made

    def take(self, key: str, source: Path, *, is_given: bool) -> FileEntry | None:
        """See `Home.take`."""
        if self._of(key) is not self._local:
            return None
        return self._local.take(key, source, is_given=is_given)

    def link(self, source: str, target: str) -> None:
        """See `Home.link`."""
        self._of(source).link(source, target)

    def flush(self, key: str) -> None:
        """See `Home.flush`."""
        self._of(key).flush(key)

    def finish(self, key: str) -> None:
        """See `Home.finish`."""
        self._of(key).finish(key)

    def seal(self, checkpoint: str, seal: Seal) -> None:
        """See `Home.seal`. It survives this process on return; its agent makes it durable here.

        If there was no room for it here, it is durable at the destination. See `Settling.wait`.
        """
        self._local.seal(checkpoint, seal)
        self._last_bytes = sum(file.size_bytes for file in seal.files)
        if not self._local.is_staged(seal.attempt):
            return
        self._agent.wake()
        if self._replicating is not None:
            self._replicate(self._replicating, checkpoint, seal.attempt)
        # Without a count more may come, and nothing is sent.
        if self._settling is not None and seal.ranks_count is not None:
            self._settling.wait(checkpoint, seal.attempt)

    def reported_as(self, attempt: str) -> str:
        """See `Home.reported_as`. Who sends it is named first."""
        reported, replica = self._local.reported_as(attempt), self._replicas.get(attempt)
        if replica is None:
            return reported
        name, _, here = reported.partition(AT)
        nodes = (replica.node, here) if replica.sends else (here, replica.node)
        return AT.join((name, *nodes))

    def commit_file(self, incoming: str, key: str, durable: bool) -> None:
        """See `Home.commit_file`."""
        self._destination.commit_file(incoming, key, durable)

    def put_file(self, key: str, data: bytes | bytearray | memoryview, durable: bool) -> None:
        """See `Home.put_file`."""
        self._destination.put_file(key, data, durable)

    def drop_file(self, incoming: str) -> None:
        """See `Home.drop_file`."""
        self._destination.drop_file(incoming)

    def discard_attempt(self, checkpoint: str, attempt: str) -> None:
        """See `Home.discard_attempt`."""
        self._local.discard_attempt(checkpoint, attempt)

    def publish(self, checkpoint: str, strict: bool, attempts: Collection[str]) -> Conflicts:
        """See `Home.publish`."""
        return self._destination.publish(checkpoint, strict, attempts)

    # Inside

    def _checkpoint(self, key: str) -> str:
        return layout.classify(key, checkpoint_depth=self._depth).checkpoint

    def _hides(self, key: str) -> bool:
        """Whether `key` is the manifest of a checkpoint that is read here: it has none yet."""
        checkpoint = str(layout.below(layout.MANIFESTS_DIR, key) or "").removesuffix(".json")
        is_far = checkpoint in self._far_found
        return bool(checkpoint) and (is_far or self._here.hides_manifest(checkpoint))

    def _to_ask(self, checkpoint: str, find: Callable[[str], Copy | None]) -> Iterator[Copy]:
        """Whole copies, the next one if one has just gone."""
        for _ in range(COPIES_COUNT if checkpoint else 0):
            copy = find(checkpoint)
            if copy is None:
                return
            yield copy
            if copy is self._far_found.get(checkpoint):
                self._far_found.pop(checkpoint, None)

    def _known_copy(self, checkpoint: str) -> Copy | None:
        """The whole copy that is here, or the one elsewhere that `_find` has found."""
        here, far = self._here.known(checkpoint), self._far_found.get(checkpoint)
        if here is None and far is not None and self._brought is not None:
            found = self._brought.here(checkpoint)
            here = found if found is not None and found.attempt == self._brought_as else None
        return here or far

    def _of(self, key: str) -> Home | SpillingHome:
        """Attempts are here, other files at the destination."""
        return self._local if guard.attempt_root(key).endswith("/data") else self._destination

    def _find(self, checkpoint: str, afresh: bool = True) -> Copy | None:
        """The whole copy of it that is here; None once it is published at the destination.

        Before that, the one of the home node counts too.
        """
        end_s, asked_s = self._clock() + self._timeout_s, self._clock()
        while True:
            copy = self._here.whole(checkpoint, afresh=afresh) or self._known_copy(checkpoint)
            if copy is not None or self._here.is_published(checkpoint):
                return copy
            copy = self._far.whole(checkpoint) if self._far is not None else None
            if copy is not None:
                self._far_found = {checkpoint: copy}  # one is read at a time
                brought = self._brought.whole(checkpoint) if self._brought is not None else None
                self._brought_as = brought.attempt if brought is not None else ""
                return brought or copy
            self._here.wait_for_answer(checkpoint)
            if self._clock() - asked_s > ASK_S:
                asked_s = self._clock()
                self._check_lost(checkpoint)
            if self._clock() > end_s:
                raise SyncTimeoutError(
                    f"{checkpoint} was staged on another node and did not arrive within "
                    f"{self._timeout_s:.0f} s (sync_timeout); does the destination answer?"
                )
            self._sleep(LOOK_S)

    def _check_lost(self, checkpoint: str) -> None:
        why = self._why_lost(checkpoint)
        if why:
            raise NotWholeError(
                f"{checkpoint} is lost ({why}); where Ray may try its trial again "
                "(FailureConfig), that goes on from its newest checkpoint that is stored"
            )

    def _has_begun(self) -> bool:
        """Whether this process is making a checkpoint here: it has waited for room before."""
        with self._made_lock:
            return any(path.exists() for path in self._made)

    def _wait_for_room(self, checkpoint: str) -> None:
        if self._has_begun():
            return
        start_s, said_s = self._clock(), float("-inf")
        while not self._agent.has_room():
            now_s = self._clock()
            if now_s - start_s > self._timeout_s:
                raise SyncTimeoutError(
                    f"{checkpoint}: no room to stage it for {self._timeout_s:.0f} s (sync_timeout):"
                    " the destination takes less than is reported, or does not answer (see the log "
                    "of the driver); report less often, or raise staging_limit_bytes"
                )
            if now_s - said_s >= SAY_S:
                logger.warning(
                    "%s waits: staging on this node is full until some of it is sent", checkpoint
                )
                said_s = now_s
            self._sleep(LOOK_S)

    def _replicate(self, replicating: Replicating, checkpoint: str, attempt: str) -> None:
        """Have another node take what is here; with it, `reported_as` names that node too."""
        name = self._local.reported_as(attempt).partition(AT)[0]
        copies, seal = self._copies.sealed(checkpoint, name)
        replica = replicating.replicate(copies, checkpoint, seal)
        with self._replicas_lock:
            self._replicas.pop(attempt, None)
            if replica is not None:
                self._replicas[attempt] = replica
            while len(self._replicas) > KEPT_COUNT:
                del self._replicas[next(iter(self._replicas))]
