"""A shared directory whose server may stop to answer: who writes there does not wait for ever.

A system call that hangs cannot be taken back. Each of a writer's is made in a thread; the writer
goes on without it when its time is up, and gives up its attempt. What the call still writes is in
that attempt's directory, which nobody seals, and so nobody takes for anything.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tune_sync.errors import SyncTimeoutError
from tune_sync.homes.home import Piece
from tune_sync.homes.shared.home import SharedHome
from tune_sync.manifest import Seal

T = TypeVar("T")

# What is given up is removed in the background: nobody waits for that where nothing answers.
DISCARD_S = 1.0


class TimedSharedHome(SharedHome):
    """See `SharedHome`; for trials.

    Args:
        root: See `SharedHome`.
        owner: See `SharedHome`.
        checkpoint_depth: See `SharedHome`.
        where: See `SharedHome`.
        timeout_s: How long a call may take (`sync_timeout`). Then it raises SyncTimeoutError.
        leased_root: See `LocalHome`.
    """

    def __init__(
        self, root: Path, owner: str, checkpoint_depth: int, where: str, timeout_s: float,
        leased_root: Path | None = None,
    ) -> None:  # fmt: skip
        super().__init__(root, owner, checkpoint_depth, where, leased_root)
        self._timeout_s = timeout_s

    def begin(self, checkpoint: str) -> str:
        """See `Home.begin`."""
        begin = super().begin
        return self._in_time(lambda: begin(checkpoint))

    def begin_file(self) -> str:
        """See `Home.begin_file`."""
        return self._in_time(super().begin_file)

    def make_dir(self, key: str) -> None:
        """See `Home.make_dir`."""
        make_dir = super().make_dir
        self._in_time(lambda: make_dir(key))

    def write(self, key: str, offset_bytes: int, data: bytes | memoryview) -> None:
        """See `Home.write`."""
        write = super().write
        self._in_time(lambda: write(key, offset_bytes, data))

    def write_batch(self, pieces: Sequence[Piece], data: bytes | bytearray | memoryview) -> None:
        """See `Home.write_batch`."""
        write_batch = super().write_batch
        self._in_time(lambda: write_batch(pieces, data))

    def link(self, source: str, target: str) -> None:
        """See `Home.link`."""
        link = super().link
        self._in_time(lambda: link(source, target))

    def seal(self, checkpoint: str, seal: Seal) -> None:
        """See `Home.seal`."""
        close = super().seal
        self._in_time(lambda: close(checkpoint, seal))

    def commit_file(self, incoming: str, key: str, durable: bool) -> None:
        """See `Home.commit_file`."""
        commit_file = super().commit_file
        self._in_time(lambda: commit_file(incoming, key, durable))

    def drop_file(self, incoming: str) -> None:
        """See `Home.drop_file`."""
        drop_file = super().drop_file
        self._in_time(lambda: drop_file(incoming), DISCARD_S)

    def discard_attempt(self, checkpoint: str, attempt: str) -> None:
        """See `Home.discard_attempt`."""
        discard = super().discard_attempt
        self._in_time(lambda: discard(checkpoint, attempt), DISCARD_S)

    def _in_time(self, call: Callable[[], T], most_s: float = math.inf) -> T:
        done: list[T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                done.append(call())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, name="tune_sync-shared", daemon=True)
        thread.start()
        patience_s = min(self._timeout_s, most_s)
        thread.join(patience_s)
        if failed:
            raise failed[0]
        if not done:
            setting = " (sync_timeout)" if patience_s == self._timeout_s else ""
            raise SyncTimeoutError(
                f"{self.root} does not answer on {self._where} after {patience_s:.0f} s{setting}: "
                "look at its file server, and at how it is mounted there"
            )
        return done[0]
