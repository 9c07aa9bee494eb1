"""A batch of blocks that is under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tune_sync.errors import PeerLostError, SyncTimeoutError, TransferCancelledError

# How long blocks that are under way may take after the end was asked for. On a link that works they
# need milliseconds; after that their streams are cut.
GRACE_S = 2.0
CUT_S = 60.0


class Transfer:
    """Counts blocks down. When it is over, no byte of it moves any more, here or at the peer.

    Args:
        block_count: Blocks that have to move.
        forget: Called to start no more blocks of it.
        cut: Called to end the streams on which blocks of it are under way.
    """

    def __init__(
        self,
        block_count: int,
        forget: Callable[[Transfer], None],
        cut: Callable[[Transfer], None],
    ) -> None:
        self._changed = threading.Condition()
        self._left_count = block_count
        self._error: Exception | None = None
        self._forget = forget
        self._cut = cut

    @property
    def is_over(self) -> bool:
        """Whether all of it moved, or it failed, and nothing is under way."""
        with self._changed:
            return self._left_count == 0

    @property
    def is_wanted(self) -> bool:
        """Whether blocks of it that are not under way have to be started."""
        with self._changed:
            return self._error is None

    def wait(self, timeout_s: float) -> None:
        """Wait until all of it has moved, each block compared with its digest.

        After an error it is over: no byte moves any more.

        Raises:
            SyncTimeoutError: It took longer than `timeout_s`, or nothing moved at all.
            TransferCancelledError: It was cancelled.
            DamagedError: Bytes that arrived are not those that were sent.
            PeerLostError: The peer is gone.
        """
        if not self._is_over_by(time.monotonic() + timeout_s):
            self.fail(SyncTimeoutError(f"a transfer took more than {timeout_s} s; try again later"))
        self._end()
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        """End it. Does nothing if it is over. May be called twice, and from any thread."""
        self.fail(TransferCancelledError("the transfer was cancelled"))
        self._end()

    def fail(self, error: Exception) -> None:
        """Let it end with `error`, unless it is over. The first error counts."""
        with self._changed:
            if self._error is not None or self._left_count == 0:
                return
            self._error = error
            self._changed.notify_all()
        self._forget(self)

    def moved(self, block_count: int = 1) -> None:
        """Say that blocks are neither to be started nor under way any more."""
        with self._changed:
            self._left_count -= block_count
            if self._left_count == 0:
                self._changed.notify_all()

    def _is_over_by(self, deadline_s: float) -> bool:
        with self._changed:
            left_s = deadline_s - time.monotonic()
            self._changed.wait_for(lambda: self._left_count == 0 or self._error, max(0.0, left_s))
            return self._left_count == 0 or self._error is not None

    def _end(self) -> None:
        if self._is_quiet_within(GRACE_S):
            return
        self._cut(self)
        if not self._is_quiet_within(CUT_S):
            raise PeerLostError("a stream does not end; connect again")

    def _is_quiet_within(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._left_count == 0, timeout_s)
