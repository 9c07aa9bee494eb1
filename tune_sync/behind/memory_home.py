"""`MemoryHome`: attempts in shared memory of this node, as far as there is room."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tune_sync import guard, layout
from tune_sync.behind.node_disk import MADE_NAME, MAKING_DIR, NodeDisk
from tune_sync.errors import StoreFullError
from tune_sync.fastpath.budget import Budget
from tune_sync.homes.home import Piece
from tune_sync.manifest import Seal

# Removes what is published, of a trial or of all (""); returns whether there was anything.
FreeMemory = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Memory:
    """Where a run stages in memory, on one node.

    Attributes:
        root: Its directory there.
        budget: What it takes from.
        most_count: Most checkpoints of a trial there.
    """

    root: Path
    budget: Budget
    most_count: int


class MemoryHome(NodeDisk):
    """The verbs of `Home` that concern attempts. Methods may be called from any thread.

    Each raises `StoreFullError` where there is no room, also after `free` was asked.

    Args:
        memory: Where.
        free: Makes room: removes what need not be in memory.
        checkpoint_depth: See `layout.classify`.
    """

    def __init__(self, memory: Memory, free: FreeMemory, checkpoint_depth: int = 1) -> None:
        super().__init__(memory.root, "", checkpoint_depth)
        self._memory = memory
        self._free = free
        self._taken: dict[str, dict[str, int]] = {}
        self._taking = threading.Lock()

    def _begin(self, checkpoint: str, attempt: str) -> str:
        trial, most_count = layout.parent(checkpoint), self._memory.most_count
        if not self._find_room(trial, lambda: self._others_count(checkpoint) < most_count):
            raise StoreFullError(
                errno.ENOSPC,
                f"{most_count} checkpoints of {trial} are in memory and not sent yet; "
                "a larger FastPath(max_checkpoints_in_memory=...) takes more",
            )
        with self._taking:  # what was removed is not written any more
            here = {k: n for k, n in self._taken.items() if self.store.info(k) is not None}
            self._taken = here
        with self._memory.budget.opened():
            return super()._begin(checkpoint, attempt)

    def make_directory(self, size_bytes: int = 0) -> Path:
        """See `Home.make_directory`. It is for so much, and should not get much larger."""
        budget = self._memory.budget
        with budget.opened():
            made = super().make_directory()
        try:
            self._find_room("", lambda: budget.has(size_bytes, budget.ready_bytes))
            budget.take(made, size_bytes, budget.ready_bytes)
            directory = made / MADE_NAME
            directory.mkdir()
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        return directory

    def expect(self, key: str, size_bytes: int) -> None:
        """See `Home.expect`."""
        self._take({key: size_bytes})

    def expect_all(self, sizes: Mapping[str, int]) -> None:
        """`expect` several files of one attempt: all of them, or none."""
        self._take(dict(sizes))

    def write(self, key: str, offset_bytes: int, data: bytes | memoryview) -> None:
        """See `Home.write`."""
        self._take({key: offset_bytes + len(data)})
        super().write(key, offset_bytes, data)

    def write_batch(self, pieces: Sequence[Piece], data: bytes | bytearray | memoryview) -> None:
        """See `Home.write_batch`."""
        self._take({piece.key: piece.length_bytes for piece in pieces})
        super().write_batch(pieces, data)

    def seal(self, checkpoint: str, seal: Seal) -> None:
        """See `Home.seal`."""
        super().seal(checkpoint, seal)
        with self._taking:
            self._taken.pop(layout.staged_key(checkpoint, seal.attempt), None)

    # Inside

    def _is_moved(self, source: Path, key: str) -> bool:
        inside = layout.below(os.path.realpath(self.store.path(MAKING_DIR)), str(source))
        if not inside:
            return self._is_copied(source, key)
        self._move_bytes(self.store.path(MAKING_DIR) / inside.partition("/")[0], source, key)
        return super()._is_moved(source, key)

    def _move_bytes(self, made: Path, source: Path, key: str) -> None:
        """What was taken for a directory that was filled is taken by the attempt now."""
        root, size_bytes = guard.attempt_root(key), source.stat().st_size
        with self._taking:
            self._memory.budget.move(made, self.store.path(layout.parent(root)), size_bytes)
            self._taken.setdefault(root, {})[key] = size_bytes

    def _is_copied(self, source: Path, key: str) -> bool:
        self._take({key: source.stat().st_size})
        return super()._is_copied(source, key)

    def _others_count(self, checkpoint: str) -> int:
        """How many other checkpoints of the trial are in memory."""
        own = f"{layout.STAGING_DIR}/{checkpoint}"
        return sum(
            layout.is_checkpoint_name(entry.key.rsplit("/", 1)[-1])
            and entry.key != own
            and bool(self.store.list(entry.key))
            for entry in self.store.list(layout.parent(own))
        )

    def _find_room(self, trial: str, is_there: Callable[[], bool]) -> bool:
        with suppress(Exception):  # the agent may be starting just now
            while not is_there() and self._free(trial):
                pass
        return is_there()

    def _take(self, sizes: dict[str, int]) -> None:
        """Let files be so large."""
        root, budget = guard.attempt_root(next(iter(sizes))), self._memory.budget
        with self._taking:
            more_bytes = _more_bytes(self._taken.get(root, {}), sizes)
        if not more_bytes:
            return
        self._find_room("", lambda: budget.has(more_bytes))  # other threads go on meanwhile
        with self._taking:
            taken = self._taken.setdefault(root, {})
            more_bytes = _more_bytes(taken, sizes)
            budget.take(self.store.path(layout.parent(root)), more_bytes)
            taken.update({key: max(size, taken.get(key, 0)) for key, size in sizes.items()})


def _more_bytes(taken: dict[str, int], sizes: dict[str, int]) -> int:
    return sum(max(0, size - taken.get(key, 0)) for key, size in sizes.items())
