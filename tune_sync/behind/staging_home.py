"""`StagingHome`: checkpoints go to this node's own disk first; an agent sends them on from there.

Everything else goes to the destination at once. What is sealed here survives the process that
wrote it, not the node.
"""

from __future__ import annotations

import builtins
import logging
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

from tune_sync import guard, layout
from tune_sync.behind.spilling_home import SpillingHome
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.errors import SyncTimeoutError
from tune_sync.homes.home import Home, LocalHome, Piece
from tune_sync.homes.store import Info
from tune_sync.manifest import Seal

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

MARKER = ".validate_storage_marker"
# How often whoever waits for room, or for a checkpoint to arrive, looks again.
LOOK_S = 0.3
# How often it says so.
SAY_S = 15.0


class StagingAgent(Protocol):
    """What sends on what is staged on this node. See `agents.node_agent`."""

    def has_room(self) -> bool:
        """Whether another checkpoint may be staged."""

    def make_room(self) -> None:
        """The disk is full: remove what need not stay."""

    def wake(self) -> None:
        """Something was sealed. Does not wait."""

    def is_settled(self, attempt: str) -> bool:
        """Whether an attempt is stored, or the destination does not answer."""


class StagingHome:
    """See `home.Home`. Methods may be called from any thread.

    Args:
        destination: Where everything goes in the end.
        root: The run's staging directory on this node.
        agent: Sends on what is staged.
        node: The Ray node's id.
        checkpoint_depth: See `layout.classify`.
        timeout_s: How long to wait for room, and for a checkpoint that is not here to arrive.
        waits: `seal` returns once the attempt is stored, or the destination does not answer.
        clock: Monotonic seconds.
        sleep: Waits for seconds.
    """

    in_place = True

    def __init__(
        self, destination: Home, root: Path, agent: StagingAgent, node: str, *,
        checkpoint_depth: int = 1, timeout_s: float = 1800.0,
        waits: bool = False,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.rewrite_s = destination.rewrite_s
        self._destination = destination
        self._local = SpillingHome(
            LocalHome(root, "", checkpoint_depth), destination, node,
            make_room=agent.make_room, timeout_s=timeout_s, clock=clock, sleep=sleep,
        )  # fmt: skip
        self._copies = StagedCopies(root)
        self._agent = agent
        self._depth = checkpoint_depth
        self._timeout_s = timeout_s
        self._waits = waits
        self._clock = clock
        self._sleep = sleep

    def info(self, key: str) -> Info | None:
        """See `Home.info`. Waits for a checkpoint that is on its way."""
        if key == MARKER:  # Ray looks at it in every report, whether the destination answers or not
            return Info(key, False, 0, 0.0)
        checkpoint = self._checkpoint(key)
        if not checkpoint:
            return None if self._is_of_copy_here(key) else self._destination.info(key)
        where = self._where(checkpoint)
        if where is None:
            return self._destination.info(key)
        found = self._copies.store.info(where + key[len(checkpoint) :])
        return found and Info(key, found.is_dir, found.size_bytes, found.modified_s)

    def list(self, key: str, recursive: bool) -> list[Info]:
        """See `Home.list`. Waits as `info` does."""
        checkpoint = self._checkpoint(key)
        where = self._where(checkpoint) if checkpoint else None
        if where is None:
            return self._destination.list(key, recursive)
        return self._copies.list(where, checkpoint, key, recursive)

    def read(self, key: str, offset_bytes: int, length_bytes: int) -> bytes | memoryview:
        """See `Home.read`."""
        checkpoint = self._checkpoint(key)
        where = self._copies.whole(checkpoint) if checkpoint else None
        if where is not None:
            try:
                inside = where + key[len(checkpoint) :]
                return self._copies.store.read(inside, offset_bytes, length_bytes)
            except FileNotFoundError:  # it is published, so the copy here has just gone
                pass
        return self._destination.read(key, offset_bytes, length_bytes)

    def read_many(self, keys: Sequence[str]) -> builtins.list[bytes]:
        """See `Home.read_many`."""
        checkpoint = self._checkpoint(keys[0]) if keys else ""
        where = self._copies.whole(checkpoint) if checkpoint else None
        if where is not None:
            try:
                return [self._copies.store.read(where + key[len(checkpoint) :]) for key in keys]
            except FileNotFoundError:  # as in `read`
                pass
        return self._destination.read_many(keys)

    def make_dir(self, key: str) -> None:
        """See `Home.make_dir`."""
        self._destination.make_dir(key)

    def remove(self, key: str) -> None:
        """See `Home.remove`."""
        self._destination.remove(key)

    def begin(self, checkpoint: str) -> str:
        """See `Home.begin`. Waits for room.

        Raises:
            SyncTimeoutError: There was none for `sync_timeout`.
        """
        self._wait_for_room(checkpoint)
        return self._local.begin(checkpoint)

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
        """See `Home.seal`. It is durable on this node's disk on return, not at the destination.

        If there was no room for it here, it is durable at the destination.
        """
        if not self._local.seal(checkpoint, seal):
            return
        self._agent.wake()
        if self._waits and seal.ranks_count is not None:  # else more may come, and nothing is sent
            self._wait_until_settled(checkpoint, seal.attempt)

    def reported_as(self, attempt: str) -> str:
        """See `Home.reported_as`."""
        return self._local.reported_as(attempt)

    def commit_file(self, incoming: str, key: str, durable: bool) -> None:
        """See `Home.commit_file`."""
        self._destination.commit_file(incoming, key, durable)

    def drop_file(self, incoming: str) -> None:
        """See `Home.drop_file`."""
        self._destination.drop_file(incoming)

    def discard_attempt(self, checkpoint: str, attempt: str) -> None:
        """See `Home.discard_attempt`."""
        self._local.discard_attempt(checkpoint, attempt)

    def publish(
        self, checkpoint: str, strict: bool, attempts: Collection[str]
    ) -> tuple[tuple[str, int, int], ...]:
        """See `Home.publish`."""
        return self._destination.publish(checkpoint, strict, attempts)

    # Inside

    def _checkpoint(self, key: str) -> str:
        return layout.classify(key, checkpoint_depth=self._depth).checkpoint

    def _is_of_copy_here(self, key: str) -> bool:
        """Whether `key` is the manifest of a checkpoint that is read here: it has none yet."""
        inside = layout.below(layout.MANIFESTS_DIR, key)
        return bool(inside) and self._copies.whole(str(inside).removesuffix(".json")) is not None

    def _of(self, key: str) -> Home | SpillingHome:
        """Attempts are here, other files at the destination."""
        return self._local if guard.attempt_root(key).endswith("/data") else self._destination

    def _where(self, checkpoint: str) -> str | None:
        """Where a whole copy of it is here; None once it is published at the destination."""
        end_s = self._clock() + self._timeout_s
        while True:
            where = self._copies.whole(checkpoint)
            if where is not None or self._is_published(checkpoint):
                return where
            if self._clock() > end_s:
                raise SyncTimeoutError(
                    f"{checkpoint} was staged on another node and did not arrive within "
                    f"{self._timeout_s:.0f} s (sync_timeout); does the destination answer?"
                )
            self._sleep(LOOK_S)

    def _is_published(self, checkpoint: str) -> bool:
        mark = layout.manifest_key(checkpoint) if self._destination.in_place else checkpoint
        return self._destination.info(mark) is not None

    def _wait_for_room(self, checkpoint: str) -> None:
        start_s, said_s = self._clock(), float("-inf")
        while not self._agent.has_room():
            now_s = self._clock()
            if now_s - start_s > self._timeout_s:
                raise SyncTimeoutError(
                    f"{checkpoint}: no room to stage it for {self._timeout_s:.0f} s (sync_timeout):"
                    " the destination takes less than is reported; report less often, or raise "
                    "staging_limit_bytes"
                )
            if now_s - said_s >= SAY_S:
                logger.warning(
                    "%s waits: staging on this node is full until some of it is sent", checkpoint
                )
                said_s = now_s
            self._sleep(LOOK_S)

    def _wait_until_settled(self, checkpoint: str, attempt: str) -> None:
        end_s = self._clock() + self._timeout_s
        while not self._agent.is_settled(attempt):
            if self._clock() > end_s:
                logger.warning("%s is staged here; it is sent once the destination answers",
                               checkpoint)  # fmt: skip
                return
            self._sleep(LOOK_S)
