"""What every transport does: move ranges of memory between this host and the shelf of a peer.

It is cut so that one-sided writes of RDMA fit behind it: memory is registered once and used often;
what orders and publishes (`reserve`, `publish`, `find`, `remove`) is small and goes over a control
channel that is authenticated; a handle from there names the memory that data is moved to and from.
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from tune_sync.errors import ConfigError
from tune_sync.fastpath.transports.shelf import Held, Shelf
from tune_sync.fastpath.transports.transfer import Transfer

Memory = bytearray | memoryview | mmap.mmap

# Most streams gain nothing more; each costs both sides a thread.
STREAMS = 4
# Small enough to stay in the caches between being digested and being sent.
BLOCK_BYTES = 4 << 20
# A peer names lengths: one that is larger is no length.
MAX_BLOCK_BYTES = 1 << 30
# Of each stream: sent and not acknowledged. Two blocks: one is on its way while one is compared.
WINDOW_BYTES = 2 * BLOCK_BYTES
# A link that is cut for less is only slow.
STALL_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 10.0
# The peer may have to make a slot: pages of fresh shared memory come at 1 GB/s or less.
RESERVE_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How much at once, and how long to wait.

    Attributes:
        stream_count: Streams to each peer.
        block_bytes: Ranges are cut into blocks of at most this.
        window_bytes: Most that a stream has under way.
        stall_timeout_s: How long nothing may move before a peer counts as lost.
        connect_timeout_s: How long a peer may take to answer at all.

    Raises:
        ConfigError: One is not above zero.
    """

    stream_count: int = STREAMS
    block_bytes: int = BLOCK_BYTES
    window_bytes: int = WINDOW_BYTES
    stall_timeout_s: float = STALL_TIMEOUT_S
    connect_timeout_s: float = CONNECT_TIMEOUT_S

    def __post_init__(self) -> None:
        if self.block_bytes > MAX_BLOCK_BYTES:
            raise ConfigError(f"block_bytes={self.block_bytes} passes {MAX_BLOCK_BYTES}")
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}={getattr(self, name)} has to be above zero")


@dataclass(frozen=True, slots=True)
class Part:
    """A range of a region, and where in the peer's memory it belongs.

    Attributes:
        here_bytes: Offset in the region.
        there_bytes: Offset in what the peer holds.
        length_bytes: Its length.
    """

    here_bytes: int
    there_bytes: int
    length_bytes: int


class Region:
    """Memory of this process that a transport may send from and receive into.

    Make it once for each slot, not for each transfer: where hardware moves the bytes, its pages are
    pinned.
    """

    def __init__(self, memory: Memory) -> None:
        self._whole = memoryview(memory)
        self.view = self._whole.cast("B")

    def close(self) -> None:
        """Let go of the memory. Not while a transfer is under way. May be called twice."""
        self.view.release()
        self._whole.release()

    def __enter__(self) -> Region:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Upload(ABC):
    """One attempt to put bytes into the memory of a peer. Nobody sees it before `publish`.

    As a context manager, it is dropped at the end if it was not published.
    """

    held: Held

    @abstractmethod
    def write(self, region: Region, parts: Sequence[Part]) -> Transfer:
        """Start to write all `parts`; returns at once. What is written twice counts as the last.

        The bytes must stay as they are until the transfer is over.

        Raises:
            ConfigError: A part is not within the region.
        """

    @abstractmethod
    def publish(self) -> None:
        """Make it visible, whole. May be repeated.

        Raises:
            NotWholeError: Not all bytes are there, compared with their digests.
            ImmutableError: Something is held under the key already.
            FileNotFoundError: The attempt was dropped.
            PeerLostError: The peer does not answer; whether it is visible is not known.
        """

    @abstractmethod
    def drop(self) -> None:
        """End the attempt; the peer has its memory back. May be repeated, and never raises."""

    def __enter__(self) -> Upload:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.drop()


class Peer(ABC):
    """A host whose shelf is reached. Methods may be called from any thread.

    Every method raises `PeerLostError` where the peer is gone, and `SyncTimeoutError` where nothing
    moved for `Limits.stall_timeout_s`. What of this peer was not published is then dropped, by
    both sides. Connect again for another try.
    """

    @abstractmethod
    def reserve(self, key: str, size_bytes: int, *, timeout_s: float = RESERVE_TIMEOUT_S) -> Upload:
        """Begin to put `size_bytes` under `key`.

        Raises:
            PathRefusedError: `key` is not a path of plain parts.
            ImmutableError: Something is held under it.
            StoreFullError: The peer has no memory for it.
        """

    @abstractmethod
    def find(self, key: str) -> Held | None:
        """What the peer holds under `key`, if it is whole.

        Raises:
            PathRefusedError: `key` is not a path of plain parts.
        """

    @abstractmethod
    def read(self, held: Held, region: Region, parts: Sequence[Part]) -> Transfer:
        """Start to read all `parts` into the region; returns at once.

        What the region holds there counts only when the transfer ended without an error.

        Raises:
            ConfigError: A part is not within the region, or its memory cannot be written.
        """

    @abstractmethod
    def remove(self, key: str) -> None:
        """Let the peer hold nothing under `key`. May be repeated."""

    @abstractmethod
    def close(self) -> None:
        """End all that is under way. May be called twice."""

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Server(ABC):
    """Serves a shelf until it is closed.

    Attributes:
        address: What a peer's `connect` takes.
    """

    address: str

    @abstractmethod
    def close(self) -> None:
        """Refuse everybody from now on, and end what is under way. May be called twice."""

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Transport(ABC):
    """One way to move bytes.

    Attributes:
        name: In the configuration, in logs and in status.
        pins: `register` pins memory, so that it is worth keeping what is registered; and bytes take
            another way than what is asked and answered.
    """

    name: str
    pins: bool = False

    @abstractmethod
    def missing(self) -> str:
        """What this host lacks for it, and how to get it; "" if nothing."""

    @abstractmethod
    def serve(self, shelf: Shelf, host: str, port: int = 0) -> Server:
        """Let peers that know the token reach `shelf`.

        Args:
            shelf: What they may write and read.
            host: The address of this host to listen on.
            port: 0: any that is free.
        """

    @abstractmethod
    def connect(self, address: str) -> Peer:
        """Reach the shelf of another host.

        Raises:
            PeerRefusedError: One of the two does not know the token.
            PeerLostError: Nobody answers there.
        """

    def register(self, memory: Memory) -> Region:
        """Prepare memory to be sent from and received into. Close the region before the memory."""
        return Region(memory)


def check_parts(region: Region, parts: Sequence[Part], size_bytes: int) -> None:
    """Raise ConfigError for a part that is not within the region, or not within `size_bytes`."""
    here_bytes = len(region.view)
    for part in parts:
        is_within = min(part.here_bytes, part.there_bytes, part.length_bytes) >= 0
        is_within &= part.here_bytes + part.length_bytes <= here_bytes
        if not is_within or part.there_bytes + part.length_bytes > size_bytes:
            raise ConfigError(f"{part} is not within {here_bytes} bytes here, {size_bytes} there")
