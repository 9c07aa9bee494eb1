"""`BroughtCopies`: checkpoints of elsewhere in this node's memory, for all who read them here.

Each is made once, however many processes of the node ask for it, and is laid out as if it had been
staged: readers map its files where they are. Nobody depends on it. Where there is no room for it,
or it cannot be made, readers read from the store themselves.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Protocol, cast

from tune_sync import layout
from tune_sync.behind.compared_copies import ANSWER_TIMEOUT_S
from tune_sync.behind.memory_home import FreeMemory, Memory, MemoryHome
from tune_sync.behind.node_copies import CopyHere, NodeCopies
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.errors import StoreFullError, StoreUnreachableError, TuneSyncError
from tune_sync.homes.home import Home
from tune_sync.homes.store import Info
from tune_sync.manifest import Manifest, Seal
from tune_sync.transfer.digests import check_whole, read_manifest
from tune_sync.transfer.small_files import SmallFiles
from tune_sync.transfer.streams import open_reader
from tune_sync.worker import NoAnswerError, answer_within

logger = logging.getLogger("ray.tune_sync")

# Files come in steps of so much: large enough to be worth several questions at once.
STEP_BYTES = 32 << 20
# Nobody has asked for it for so long: its readers have it by now.
IDLE_S = 60.0
# How often a node says that it cannot bring any: each would fail for the same reason.
SAY_S = 600.0
# What a run reads is counted by its bytes alone.
ANY_COUNT = 1 << 30
BROUGHT_DIR = "brought"


class Source(Protocol):
    """Where a checkpoint is read from: the verbs of `Home` for that."""

    def list(self, key: str, recursive: bool) -> list[Info]:
        """See `Home.list`."""

    def read(self, key: str, offset_bytes: int, length_bytes: int) -> bytes | memoryview:
        """See `Home.read`."""

    def read_many(self, keys: Sequence[str]) -> Sequence[bytes]:
        """See `Home.read_many`."""


class Others(Protocol):
    """Other nodes that read the same. See `agents.shared_reads`."""

    def holder(self, checkpoint: str, gone: str = "") -> str:
        """See `Holders.join`; "" too where nobody tells."""

    def copy_of(self, node: str, checkpoint: str) -> Source:
        """What another node has; raises FileNotFoundError, in each call, once it has not."""

    def take_replica(self, checkpoint: str, have: str) -> bool:
        """Have the home node's replica of a checkpoint put into `BroughtCopies.home`.

        Returns at once if it is of the attempt `have`, and False if there is none. Raises what
        keeps it from coming here whole.
        """


def brought_in(memory: Memory) -> NodeCopies:
    """The copies that readers find in the memory of a node."""
    return NodeCopies(memory.root / BROUGHT_DIR)


class BroughtCopies:
    """Methods may be called from any thread.

    Args:
        memory: Of the run, on this node.
        open_home: Makes the destination's home.
        free_memory: See `MemoryHome`.
        others: Other nodes.
        checkpoint_depth: See `layout.classify`.
        clock: Monotonic seconds.
        answer_s: How long the store's answer is waited for, where there may be a replica.

    Attributes:
        copies: Those that are here.
        home: Where they are made.
    """

    def __init__(
        self, memory: Memory, open_home: Callable[[], Home], free_memory: FreeMemory,
        others: Others, checkpoint_depth: int = 1, *,
        clock: Callable[[], float] = time.monotonic, answer_s: float = ANSWER_TIMEOUT_S,
    ) -> None:  # fmt: skip
        self.copies = brought_in(memory)
        self._root: Path = memory.root / BROUGHT_DIR
        here = Memory(self._root, memory.budget, ANY_COUNT)
        self.home = MemoryHome(here, free_memory, checkpoint_depth)
        self._open_home = open_home
        self._others = others
        self._clock = clock
        self._answer_s = answer_s
        self._lock = threading.Lock()
        self._running: dict[str, Future[bool]] = {}
        self._used_s: dict[str, float] = {}
        self._said_s = float("-inf")

    def bring(self, checkpoint: str) -> bool:
        """Return once a whole copy is here; False if none can be. All who ask wait for one.

        It is made of what is stored, or before that of the home node's replica.
        """
        with self._lock:
            self._used_s[checkpoint] = self._clock()
            running = self._running.get(checkpoint)
            mine = None if running is not None else Future[bool]()
            if mine is not None:
                self._running[checkpoint] = mine
        if mine is None:
            return cast("Future[bool]", running).result()
        is_here = False
        try:
            is_here = self._bring_once(checkpoint)
        except StoreFullError as error:
            logger.info("each reader of %s here reads it by itself: %s", checkpoint, error)
        except Exception as error:  # they find out themselves what is wrong, and say so
            level = logging.WARNING if self._says() else logging.DEBUG
            logger.log(level, "each reader of %s here reads it by itself: %s", checkpoint, error)
        finally:
            with self._lock:
                del self._running[checkpoint]
                self._used_s[checkpoint] = self._clock()
                if not is_here:
                    del self._used_s[checkpoint]
            mine.set_result(is_here)
        return is_here

    def wait(self, checkpoint: str) -> CopyHere:
        """The copy that is here, or on its way. Raises FileNotFoundError if there is none."""
        with self._lock:
            running = self._running.get(checkpoint)
        if running is not None:
            running.result()
        found = self.copies.whole(checkpoint)
        if found is None:
            raise FileNotFoundError(f"no copy of {checkpoint} is here for readers")
        with self._lock:
            self._used_s[checkpoint] = self._clock()
        return found

    def free(self) -> bool:
        """Remove all that nobody reads just now; returns whether there was any."""
        return self._remove(lambda checkpoint: True)

    def has_some(self) -> bool:
        """Whether there is any, or one is on its way."""
        with self._lock:
            is_coming = bool(self._running)
        return is_coming or any(True for _ in self.copies.attempts())

    def sweep(self) -> None:
        """Remove what nobody has read for long."""
        now_s = self._clock()
        self._remove(lambda checkpoint: now_s - self._used_s.get(checkpoint, 0.0) > IDLE_S)

    # Inside

    def _says(self) -> bool:
        """Whether it has not said for a while what keeps copies from coming here."""
        with self._lock:
            now_s = self._clock()
            is_due = now_s - self._said_s >= SAY_S
            if is_due:
                self._said_s = now_s
        return is_due

    def _remove(self, is_meant: Callable[[str], bool]) -> bool:
        removed = False
        for copies, checkpoint, attempt in list(self.copies.attempts()):
            with self._lock:
                is_free = checkpoint not in self._running and is_meant(checkpoint)
            if is_free and copies.remove(checkpoint, attempt):
                removed = True
                with self._lock:
                    self._used_s.pop(checkpoint, None)
        return removed

    def _bring_once(self, checkpoint: str) -> bool:
        here = self.copies.whole(checkpoint)
        home = self._open_home()
        try:
            manifest = answer_within(lambda: read_manifest(home, checkpoint), self._answer_s)
        except (NoAnswerError, StoreUnreachableError):
            if self._others.take_replica(checkpoint, here.staged_as() if here is not None else ""):
                return True
            raise
        if here is not None and manifest is not None and here.is_of(manifest):
            return True
        if manifest is None:
            have = here.staged_as() if here is not None else ""
            return self._others.take_replica(checkpoint, have)
        if here is not None:  # of what had the name before
            self.copies.remove(checkpoint, here.attempt)
        node, asked = self._others.holder(checkpoint), set[str]()
        while node and node not in asked:
            asked.add(node)
            try:
                self._copy(self._others.copy_of(node, checkpoint), manifest)
                return True
            except StoreFullError:
                raise
            except (TuneSyncError, OSError) as error:
                logger.debug("%s does not come from node %s: %s", checkpoint, node, error)
            node = self._others.holder(checkpoint, node)
        self._copy(home, manifest)
        return True

    def _copy(self, source: Source, manifest: Manifest) -> None:
        checkpoint = manifest.checkpoint
        attempt = self.home.begin(checkpoint)
        data = layout.staged_key(checkpoint, attempt)
        try:
            if manifest.files:
                self.home.expect_all({f"{data}/{f.path}": f.size_bytes for f in manifest.files})
            self._read(source, manifest, data)
            self.home.seal(
                checkpoint,
                Seal(attempt, 0, time.time(), manifest.files, manifest.directories, ranks_count=1),
            )
        except BaseException:
            with suppress(OSError):
                StagedCopies(self._root).remove(checkpoint, attempt)
            raise

    def _read(self, source: Source, manifest: Manifest, data: str) -> None:
        checkpoint, home = manifest.checkpoint, cast(Home, source)
        found = {entry.key: entry for entry in source.list(checkpoint, True)}
        small = SmallFiles(home, list(found.values()))
        for file in manifest.files:
            key, target = f"{checkpoint}/{file.path}", f"{data}/{file.path}"
            body = small.take(key)
            if body is not None:
                self.home.write(target, 0, check_whole(file, key, body))
                continue
            reader, at_bytes = open_reader(home, key, key, file, found.get(key)), 0
            while at_bytes < file.size_bytes:
                chunk = reader.read(STEP_BYTES)
                self.home.write(target, at_bytes, chunk)
                at_bytes += len(chunk)
