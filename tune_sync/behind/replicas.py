"""`Replicas`: takes copies of what other nodes have staged, as if it had been staged here.

A copy has the id of its attempt, and is laid out like one: whoever reads, sends, removes or
recovers what this node has staged does the same with it. Its seal comes last: before that it counts
for nothing.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tune_sync import guard, layout
from tune_sync.behind.memory_home import FreeMemory, Memory, MemoryHome
from tune_sync.behind.node_copies import NodeCopies
from tune_sync.behind.node_disk import NodeDisk
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.errors import PathRefusedError, StoreError, StoreFullError
from tune_sync.homes.home import Piece
from tune_sync.manifest import Seal

# A copy to which nothing was written for so long has lost its sender. One whose link was only cut
# finds that it is gone, and begins again.
SILENT_S = 60.0
# Where a copy goes: among what is staged in memory, or on the disk; or among those for readers.
Room = Literal["memory", "disk", "readers"]
# So many threads write at a time: more only wait for each other.
WRITERS_COUNT = 2
# Whoever confirms a copy holds it for a moment. Others, who hold it for longer, are not waited for.
PAUSES_S = (0.05, 0.1, 0.2, 0.4)


@dataclass(slots=True)
class _Arriving:
    """A copy on its way. `moved_s` is of the monotonic clock."""

    home: NodeDisk
    checkpoint: str
    moved_s: float


class Replicas:
    """Methods may be called from any thread.

    Args:
        root: The run's staging directory on this node.
        memory: Where to take copies first.
        free_memory: See `MemoryHome`.
        forget: Removes a copy that may count already; see `NodeSender.forget`.
        has_room: Whether anything more may be staged on this node's disk.
        checkpoint_depth: See `layout.classify`.
        for_readers: Where to take those that are only read here; see `reading.brought`.
        clock: Monotonic seconds.

    Attributes:
        copies: What is staged on this node.
    """

    def __init__(
        self, root: Path, memory: Memory | None, free_memory: FreeMemory,
        forget: Callable[[str, str], bool], has_room: Callable[[], bool],
        checkpoint_depth: int = 1, for_readers: MemoryHome | None = None, *,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        in_memory = MemoryHome(memory, free_memory, checkpoint_depth) if memory else None
        self._disk = NodeDisk(root, "", checkpoint_depth)
        self._for_readers = for_readers
        self._homes: dict[Room, NodeDisk | None] = {
            "memory": in_memory, "disk": self._disk, "readers": for_readers
        }  # fmt: skip
        self.copies = NodeCopies(*([memory.root] if memory is not None else []), root)
        self._forget = forget
        self._has_room = has_room
        self._clock = clock
        self._sleep = sleep
        self._arriving: dict[str, _Arriving] = {}
        self._arrivals = threading.Lock()
        self._writers = threading.Semaphore(WRITERS_COUNT)

    def begin(self, checkpoint: str, attempt: str, sizes: Mapping[str, int], room: Room) -> None:
        """Begin to take a copy; what was here of it goes.

        Args:
            checkpoint: Its checkpoint.
            attempt: Its id.
            sizes: Path of each file -> its size in bytes.
            room: Where to put it.

        Raises:
            StoreFullError: There is no room for it, in memory or on the disk.
            PathRefusedError: What is asked for is not in staging.
            StoreError: See `discard`.
        """
        home = self._homes[room]
        if home is None or (home is self._disk and not self._has_room()):
            raise StoreFullError(
                errno.ENOSPC,
                "this node has no memory for checkpoints" if home is None else
                "staging on this node's disk is full until some of it is sent",
            )  # fmt: skip
        data = layout.staged_key(checkpoint, guard.attempt(attempt))
        of_keys = {guard.staged(f"{data}/{path}"): size for path, size in sizes.items()}
        self._discard(checkpoint, attempt, home)
        home.begin_as(checkpoint, attempt)
        try:
            if isinstance(home, MemoryHome) and of_keys:
                home.expect_all(of_keys)
        except BaseException:
            StagedCopies(home.root).remove(checkpoint, attempt)
            raise
        with self._arrivals:
            self._arriving[attempt] = _Arriving(home, checkpoint, self._clock())

    def write(self, pieces: Sequence[Piece], data: memoryview, at_bytes: int | None = None) -> None:
        """Small files that came together; or with `at_bytes` a chunk of one file, and where."""
        home = self._home_of(*(piece.key for piece in pieces))
        with self._writers:
            if at_bytes is None:
                home.write_batch(pieces, data)
            else:
                home.write(pieces[0].key, at_bytes, data)

    def link(self, source: str, target: str) -> None:
        """See `Home.link`."""
        self._home_of(target).link(source, target)

    def seal(self, checkpoint: str, seal: Seal) -> None:
        """All of it is here: from now on it counts. Of several, the one that came last."""
        home = self._arriving_as(guard.attempt(seal.attempt))
        # By the clock of this node: those of two writers need not agree.
        home.seal(checkpoint, replace(seal, sealed_s=time.time()))
        with self._arrivals:
            self._arriving.pop(seal.attempt, None)

    def discard(self, checkpoint: str, attempt: str) -> None:
        """Drop a copy, whole or not; its late writes fail.

        Raises:
            StoreError: It is read, or sent, just now; it stays as it is.
        """
        with self._arrivals:
            found = self._arriving.get(attempt)
        self._discard(checkpoint, attempt, found.home if found is not None else self._disk)

    def _discard(self, checkpoint: str, attempt: str, home: NodeDisk) -> None:
        guard.attempt(attempt)
        with self._arrivals:
            self._arriving.pop(attempt, None)
        if home is self._for_readers:
            if not StagedCopies(home.root).remove(checkpoint, attempt):
                raise StoreError(f"a copy of {checkpoint} is read on its node")
            return
        for pause_s in (*PAUSES_S, None):
            if self._forget(checkpoint, attempt):
                return
            if pause_s is not None:
                self._sleep(pause_s)
        raise StoreError(f"a replica of {checkpoint} is in use on its node; it is tried again")

    def sweep(self) -> list[str]:
        """Drop copies whose senders have gone; returns their checkpoints."""
        now_s = self._clock()
        with self._arrivals:
            silent = [
                (one.checkpoint, attempt)
                for attempt, one in self._arriving.items()
                if now_s - one.moved_s > SILENT_S
            ]
        for checkpoint, attempt in silent:
            self.discard(checkpoint, attempt)
        return [checkpoint for checkpoint, _ in silent]

    def _home_of(self, *keys: str) -> NodeDisk:
        """Where files of one attempt go."""
        roots = {guard.attempt_root(guard.staged(key)) for key in keys}
        if len(roots) != 1:
            raise PathRefusedError(
                f"{keys[0]}: bytes of {len(roots)} attempts came as those of one"
            )
        return self._arriving_as(roots.pop().rpartition("/")[0].rpartition("/")[2])

    def _arriving_as(self, attempt: str) -> NodeDisk:
        with self._arrivals:
            found = self._arriving.get(attempt)
            if found is None:
                raise FileNotFoundError(f"no replica {attempt} is arriving here; begin again")
            found.moved_s = self._clock()
        return found.home
