"""The data connections to one peer: each takes blocks from one queue, some under way at a time."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tune_sync.errors import PeerLostError
from tune_sync.fastpath.transports import wire
from tune_sync.fastpath.transports.stream import Stream
from tune_sync.fastpath.transports.transfer import Transfer
from tune_sync.fastpath.transports.transport import Limits, Part, Region
from tune_sync.fastpath.transports.wire import Request

logger = logging.getLogger(__name__)

# Of small blocks; so many answers fit into any socket's buffer.
MOST_BLOCKS_UNDER_WAY = 64
JOIN_S = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A range that is moved at once: `view`, of `region`, and where it belongs at the peer."""

    transfer: Transfer
    do: int
    handle: bytes
    offset_bytes: int
    length_bytes: int
    region: Region
    view: memoryview

    def send(self, stream: Stream) -> None:
        is_write = self.do == wire.WRITE
        request = Request(self.do, self.handle, self.offset_bytes, self.length_bytes)
        request.send(stream, self.view if is_write else None)

    def end(self) -> None:
        """Say that it is not under way any more."""
        self.view.release()
        self.transfer.moved()


class Lanes:
    """Moves blocks to and from one peer. Methods may be called from any thread.

    Args:
        connect: Opens one more data connection.
        on_lost: Told why, when one ended that was not cut here.
        limits: How many, and how much each has under way.
        make_lane: Makes one of them.
    """

    def __init__(
        self,
        connect: Callable[[], Stream],
        on_lost: Callable[[Exception], None],
        limits: Limits,
        make_lane: LaneMaker | None = None,
    ) -> None:
        self._limits = limits
        self._changed = threading.Condition()
        self._blocks: deque[Block] = deque()
        self._closed: Exception | None = None
        make_lane = make_lane or Lane
        self._lanes = [make_lane(self, connect, on_lost) for _ in range(limits.stream_count)]
        self._is_started = False

    def start(self, do: int, handle: bytes, region: Region, parts: Sequence[Part]) -> Transfer:
        """Queue all blocks of `parts`; returns at once."""
        ranges = list(_cut(parts, self._limits.block_bytes))
        transfer = Transfer(len(ranges), self._forget, self._cut)
        views = (region.view[part.here_bytes :][: part.length_bytes] for part in ranges)
        blocks = [
            Block(transfer, do, handle, part.there_bytes, part.length_bytes, region, view)
            for part, view in zip(ranges, views, strict=True)
        ]
        with self._changed:
            self._blocks.extend(blocks)
            self._start_threads()
            self._changed.notify(len(blocks))
            closed = self._closed
        if closed is not None:
            transfer.fail(closed)
        return transfer

    def take(self, lane: Lane, *, wait: bool) -> Block | None:
        """Make a block the lane's next; None if there is none, or, with `wait`, never will be."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._blocks or self._closed)
            lane.next = self._blocks.popleft() if self._blocks else None
            return lane.next

    def begin(self, lane: Lane) -> Block | None:
        """Put the lane's next block under way; None if it is not wanted any more."""
        with self._changed:
            block, lane.next = lane.next, None
            if block is not None:
                lane.under_way.append(block)
            return block

    def may_send(self, block: Block, under_way: Sequence[Block]) -> bool:
        """Whether `block` may be sent before the answers to those under way have come."""
        if not under_way:
            return True
        # Both sides would wait for the other to take a block, if one of each kind was under way.
        bytes_under_way = sum(other.length_bytes for other in (*under_way, block))
        return (
            under_way[0].do == block.do
            and len(under_way) < MOST_BLOCKS_UNDER_WAY
            and bytes_under_way <= self._limits.window_bytes
        )

    def close(self, error: Exception) -> None:
        """End all that is queued and under way with `error`. May be called twice."""
        with self._changed:
            self._closed = self._closed or error
            nexts = [lane.next for lane in self._lanes if lane.next is not None]
            transfers = {block.transfer for block in (*self._blocks, *nexts)}
            self._changed.notify_all()
        for transfer in transfers:
            transfer.fail(error)
        for lane in self._lanes:
            lane.cut()

    def join(self) -> None:
        """Wait for the threads, after `close`."""
        for lane in self._lanes:
            if lane.thread.is_alive() and lane.thread is not threading.current_thread():
                lane.thread.join(JOIN_S)

    def _start_threads(self) -> None:
        if not self._is_started:
            self._is_started = True
            for lane in self._lanes:
                lane.thread.start()

    def _forget(self, transfer: Transfer) -> None:
        with self._changed:
            gone = [block for block in self._blocks if block.transfer is transfer]
            self._blocks = deque(b for b in self._blocks if b.transfer is not transfer)
            for lane in self._lanes:
                if lane.next is not None and lane.next.transfer is transfer:
                    gone.append(lane.next)
                    lane.next = None
        for block in gone:
            block.end()

    def _cut(self, transfer: Transfer) -> None:
        for lane in self._lanes:
            if lane.moves(transfer):
                lane.cut()


class Lane:
    """One connection and its thread.

    Args:
        lanes: Where its blocks come from.
        connect: Opens the connection.
        on_lost: Told why it ended, if it was not cut here.
    """

    def __init__(
        self, lanes: Lanes, connect: Callable[[], Stream], on_lost: Callable[[Exception], None]
    ) -> None:
        self._lanes = lanes
        self._connect = connect
        self._on_lost = on_lost
        self._stream: Stream | None = None
        self.under_way: deque[Block] = deque()
        self.next: Block | None = None  # guarded by the lock of `lanes`
        self._is_cut = False
        self.thread = threading.Thread(target=self._run, name="tune_sync-lane", daemon=True)

    @property
    def is_cut(self) -> bool:
        """Whether its connection was ended here."""
        return self._is_cut

    def moves(self, transfer: Transfer) -> bool:
        """Whether a block of it is under way."""
        return any(block.transfer is transfer for block in list(self.under_way))

    def cut(self) -> None:
        """End the connection, and what is under way."""
        self._is_cut = True
        stream = self._stream
        if stream is not None:
            stream.cut()

    def _run(self) -> None:
        while True:
            block = self._lanes.take(self, wait=not self.under_way)
            if block is None and not self.under_way:
                break
            try:
                if block is None:
                    self._finish_first()
                else:
                    self._begin(block)
            except Exception as error:
                self._fail(error)
        if self._stream is not None:
            self._end(self._stream)

    def _begin(self, block: Block) -> None:
        while not self._lanes.may_send(block, self.under_way):
            self._finish_first()
        stream = self._opened()
        begun = self._lanes.begin(self)  # until here, it could be forgotten
        if begun is not None:
            self._send(stream, begun)

    def _finish_first(self) -> None:
        block = self.under_way[0]
        error = self._finish(self._opened(), block)
        self.under_way.popleft()
        if error is not None:
            block.transfer.fail(error)
        block.end()

    def _send(self, stream: Stream, block: Block) -> None:
        block.send(stream)

    def _finish(self, stream: Stream, block: Block) -> Exception | None:
        """Wait until a block has moved, or the peer says why it cannot."""
        return wire.receive_reply(stream, block.view if block.do == wire.READ else None)

    def _close(self, stream: Stream) -> None:
        """When it returns, no byte of a block moves any more."""
        stream.close()

    def _end(self, stream: Stream) -> None:
        """`_close`, whatever a device that fails says to that: who waits for blocks has to hear."""
        try:
            self._close(stream)
        except Exception as error:
            logger.warning("a device does not let go of its connection to another host: %s", error)
        stream.close()

    def _opened(self) -> Stream:
        if self._stream is None:
            self._is_cut = False
            self._stream = self._connect()
        return self._stream

    def _fail(self, error: Exception) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            self._end(stream)
        if self._is_cut:
            error = PeerLostError("the connection was cut here, to end a transfer; write it again")
        self._lanes.begin(self)
        blocks = list(self.under_way)
        self.under_way.clear()
        for block in blocks:
            block.transfer.fail(error)
            block.end()
        if not self._is_cut:
            self._on_lost(error)


LaneMaker = Callable[[Lanes, Callable[[], Stream], Callable[[Exception], None]], Lane]


def _cut(parts: Sequence[Part], block_bytes: int) -> Iterator[Part]:
    for part in parts:
        for done in range(0, part.length_bytes, block_bytes):
            length_bytes = min(block_bytes, part.length_bytes - done)
            yield Part(part.here_bytes + done, part.there_bytes + done, length_bytes)
