"""`TransportLane`: bytes of replicas from this process's memory into that of another node."""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, Protocol

from tune_sync.behind.message_room import MessageRoom
from tune_sync.behind.replica_intake import DATA_BYTES, LENGTH_BYTES, SLOT_BYTES
from tune_sync.behind.replica_message import Bytes, Message
from tune_sync.errors import PeerLostError, StoreFullError
from tune_sync.fastpath.transports import Peer, Transport, Upload, prove
from tune_sync.homes.home import Piece

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# Slots at the other node are shared: it waits for one that is in use, each time for a while.
TRIES_COUNT = 3
# For so long nothing more is tried by a transport once the other node had no slot.
NO_SLOTS_S = 600.0


class ReplicaLane(Protocol):
    """How bytes go to the other node's agent.

    Attributes:
        name: Of the transport.
    """

    name: str

    def send(self, attempt: str, message: Message, data: Bytes) -> Any:
        """Send bytes, which may change on return; returns what to wait for, or None."""

    def flush(self, attempt: str) -> Any:
        """All is sent: returns what to wait for until it is in its place, or None."""

    def close(self) -> None:
        """It is not used any more."""


class TransportLane:
    """See `ReplicaLane`. Calls may come from any thread.

    Args:
        transport: What moves them.
        address: Where the other node takes replicas.
        flush: Asks its agent to flush an attempt, of which bytes came by a transport of that name;
            returns what to wait for.
        instead: Takes all, for a while, once the other node had no slots. None: that is an error.
        timeout_s: How long a message may take.
        clock: Monotonic seconds.
        warn: Takes what is to be warned of, as `Logger.warning` does.

    Raises:
        TuneSyncError: The other node cannot be reached so.
    """

    def __init__(
        self, transport: Transport, address: str, flush: Callable[[str, str], Any],
        instead: ReplicaLane | None, timeout_s: float, clock: Callable[[], float] = time.monotonic,
        warn: Callable[..., None] = logger.warning,
    ) -> None:  # fmt: skip
        self.name = transport.name
        self._flush = flush
        self._instead = instead
        self._timeout_s = timeout_s
        self._peer: Peer = transport.connect(address)
        self._clock = clock
        self._warn = warn
        self._no_slots_until_s = float("-inf")
        self._session, self._numbers = uuid.uuid4().hex, itertools.count()
        self._room = MessageRoom(transport, SLOT_BYTES)
        if transport.pins:
            self._prove(transport)

    def send(self, attempt: str, message: Message, data: Bytes) -> Any:
        """See `ReplicaLane.send`."""
        if self._instead is not None and self._clock() < self._no_slots_until_s:
            return self._instead.send(attempt, message, data)
        for part, piece in _split(message, memoryview(data)):
            try:
                self._put(attempt, part.to_json(), piece)
            except StoreFullError as error:
                return self._fall_back(error).send(attempt, message, data)
        return None

    def flush(self, attempt: str) -> Any:
        """See `ReplicaLane.flush`."""
        return self._flush(attempt, self.name)

    def close(self) -> None:
        """See `ReplicaLane.close`: end the connections."""
        self._peer.close()
        self._room.close()

    def _prove(self, transport: Transport) -> None:
        try:
            prove(transport, self._peer)
        except BaseException:
            self.close()
            raise

    def _put(self, attempt: str, said: bytes, data: memoryview) -> None:
        head = len(said).to_bytes(LENGTH_BYTES, "big") + said
        key = f"{attempt}/{self._session}/{next(self._numbers)}"
        with ExitStack() as stack:
            sources = stack.enter_context(self._room.holding(head, data))
            upload = stack.enter_context(self._reserved(key, len(head) + len(data)))
            transfers = []
            for region, part in sources:
                transfers.append(upload.write(region, [part]))
                stack.callback(transfers[-1].cancel)  # it is over before its memory is reused
            for transfer in transfers:
                transfer.wait(self._timeout_s)
            upload.publish()

    def _reserved(self, key: str, size_bytes: int) -> Upload:
        for _ in range(TRIES_COUNT - 1):
            with suppress(StoreFullError):
                return self._peer.reserve(key, size_bytes)
        return self._peer.reserve(key, size_bytes)

    def _fall_back(self, error: StoreFullError) -> ReplicaLane:
        if self._instead is None:
            raise PeerLostError(f"transport {self.name!r} is required, and {error}") from error
        now_s = self._clock()
        if now_s >= self._no_slots_until_s:
            self._no_slots_until_s = now_s + NO_SLOTS_S
            self._warn(
                "transport %r was asked for; %r is used (%s)", self.name, self._instead.name, error
            )
        return self._instead


def _split(message: Message, data: memoryview) -> Iterator[tuple[Message, memoryview]]:
    """What fits into slots: chunks of a chunk, and batches of less files."""
    if message.at_bytes is None:
        yield from _split_batch(message.pieces, data)
        return
    key = message.pieces[0].key
    for start in range(0, max(1, len(data)), DATA_BYTES):
        view = data[start : start + DATA_BYTES]
        yield Message.of_chunk(key, message.at_bytes + start, len(view)), view


def _split_batch(
    pieces: tuple[Piece, ...], data: memoryview
) -> Iterator[tuple[Message, memoryview]]:
    batch = Message.of_batch(pieces)
    is_small = LENGTH_BYTES + len(batch.to_json()) + len(data) <= SLOT_BYTES
    if is_small or len(pieces) == 1:
        yield batch, data
        return
    middle = len(pieces) // 2
    for half in (pieces[:middle], pieces[middle:]):
        start = min(piece.offset_bytes for piece in half)
        end = max(piece.offset_bytes + piece.length_bytes for piece in half)
        moved = tuple(Piece(p.key, p.offset_bytes - start, p.length_bytes) for p in half)
        yield from _split_batch(moved, data[start:end])
