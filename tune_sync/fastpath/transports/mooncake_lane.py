"""The side of Mooncake that writes and reads the memory of another host."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tune_sync.errors import PeerLostError, SyncTimeoutError
from tune_sync.fastpath.mooncake_engine import Engine, EngineMemory, Target
from tune_sync.fastpath.transports import wire
from tune_sync.fastpath.transports.borrowing import BorrowingLane, received
from tune_sync.fastpath.transports.lanes import Block, Lanes
from tune_sync.fastpath.transports.stream import Stream
from tune_sync.fastpath.transports.transport import Limits, Memory, Region
from tune_sync.fastpath.verbs.device import address_of

# The engine cannot be stopped. A block that is not wanted any more ends soon, or its memory is
# taken from the engine; so is that of a peer that is gone.
_CUT_S = 10.0
_GONE_S = 2.0
# It cannot be waited for either.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 50e-6, 2e-3


class MooncakeRegion(Region):
    """Memory of this process, pinned from its first transfer on."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self._lock = threading.Lock()
        self._registered: dict[Engine, EngineMemory] = {}

    def register(self, engine: Engine) -> None:
        """Let an engine reach it, if it does not yet. Raises as `EngineMemory` does."""
        with self._lock:
            if engine not in self._registered:
                self._registered[engine] = EngineMemory(engine, self.view)

    def take_back(self) -> None:
        """When this returns, no engine reaches it any more. What was under way fails.

        Raises:
            StoreError: One still does.
        """
        with self._lock, ExitStack() as stack:
            for registered in self._registered.values():
                stack.callback(registered.close)
            self._registered.clear()

    def close(self) -> None:
        try:
            self.take_back()
        finally:
            super().close()


class MooncakeLane(BorrowingLane):
    """The TCP connection on which each block is asked for, and told done; an engine moves it.

    Args:
        lanes: Where its blocks come from.
        connect: Opens the TCP connection.
        on_lost: Told why it ended, if it was not cut here.
        engine_for: The engine that a connection's blocks are moved by.
        limits: How long to wait.
    """

    def __init__(
        self,
        lanes: Lanes,
        connect: Callable[[], Stream],
        on_lost: Callable[[Exception], None],
        engine_for: Callable[[Stream], Engine],
        limits: Limits,
    ) -> None:
        super().__init__(lanes, lambda: self._welcomed(connect()), on_lost)
        self._engine_for = engine_for
        self._stall_timeout_s = limits.stall_timeout_s
        self._cut_lock = threading.Lock()
        self._is_moving = False

    def cut(self) -> None:
        with self._cut_lock:
            self._is_cut = True
            if not self._is_moving:  # else the other side would take the whole slot back
                super().cut()

    def _welcomed(self, stream: Stream) -> Stream:
        try:
            received(stream)
        except BaseException:
            stream.close()
            raise
        return stream

    def _moved(self, stream: Stream, block: Block, lent: dict[str, Any]) -> bytes:
        assert isinstance(block.region, MooncakeRegion)
        end_s = time.monotonic() + self._stall_timeout_s
        engine, target = self._engine_for(stream), Target.parsed(lent)
        is_write, here = block.do == wire.WRITE, address_of(block.view)
        block.region.register(engine)
        with self._moving():
            # The engine asks for a key as it starts: it would get that of who has the memory then.
            if _is_closed(stream) or time.monotonic() > end_s:
                raise PeerLostError(
                    "a block began so late that its memory may be another's; connect again"
                )
            try:
                number = engine.start(here, target, block.length_bytes, is_write=is_write)
                digest = wire.digest_of(block.view) if is_write else b""  # while it moves
                if not number or not self._waited(engine, number, stream, end_s):
                    raise PeerLostError(
                        f"Mooncake's engine could not move bytes to or from {target.engine}, and "
                        "has written why to stderr; connect again"
                    )
            except BaseException:
                block.region.take_back()  # before the memory may be used for something else
                raise
        return digest or wire.digest_of(block.view)

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """While the engine may be at a block."""
        with self._cut_lock:
            if self._is_cut:
                raise PeerLostError("the connection was cut here, to end a transfer")
            self._is_moving = True
        try:
            yield
            with self._cut_lock:
                self._is_cut = False  # the block has ended: nothing is left to be cut
        finally:
            with self._cut_lock:
                self._is_moving = False

    def _waited(self, engine: Engine, number: int, stream: Stream, end_s: float) -> bool:
        """Wait until it is over; returns whether it moved. After an error it may be under way."""
        error: Exception | None = None
        pause_s = _FIRST_PAUSE_S
        while (is_there := engine.status(number)) is None:
            now_s = time.monotonic()
            if error is None and self._is_cut:
                error, end_s = PeerLostError("it was cut here"), min(end_s, now_s + _CUT_S)
            elif error is None and _is_closed(stream):
                error = PeerLostError("the other host closed the connection; connect again")
                end_s = min(end_s, now_s + _GONE_S)
            if now_s > end_s:
                raise error or SyncTimeoutError(
                    f"a block did not move for {self._stall_timeout_s} s; try again, or raise the "
                    "stall timeout"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return is_there


def _is_closed(stream: Stream) -> bool:
    """Whether the other side has closed it."""
    watch = select.poll()
    watch.register(stream.fileno(), select.POLLRDHUP)
    return bool(watch.poll(0))
