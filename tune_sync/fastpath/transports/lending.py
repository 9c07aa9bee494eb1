"""The side that holds the memory, where bytes go past TCP: it lends a block of it at a time."""

from __future__ import annotations

import logging
import mmap
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

from tune_sync.errors import ConfigError, PeerLostError, SyncTimeoutError
from tune_sync.fastpath.transports import wire
from tune_sync.fastpath.transports.shelf import StillReachedError
from tune_sync.fastpath.transports.stream import Stream
from tune_sync.fastpath.transports.tcp_server import TcpServer

logger = logging.getLogger(__name__)

# Nothing is heard of a peer while it moves a block. It gives up after one stall; then its word, or
# the end of its connection, is on the way.
LEND_STALLS = 2


class Lender(Protocol):
    """Lets the peer at the other end of one connection reach memory."""

    def lend(self, block: memoryview) -> dict[str, Any]:
        """Let it reach `block`, which is part of a slot; returns what it has to know."""

    def take_back(self, block: memoryview) -> None:
        """The peer ended without a word. When this returns, it cannot reach `block` any more.

        If it raises, the peer may: the memory is never given back then.
        """


class LendingServer(TcpServer):
    """Serves a shelf to peers that know the token; bytes go by TCP only if a peer wants that.

    Attributes:
        by: What a peer says that wants to be lent memory.
    """

    by: str

    @abstractmethod
    def _lender(self, stream: Stream) -> AbstractContextManager[Lender]:
        """One for a peer's connection."""

    def _serve_blocks(self, stream: Stream, hello: dict[str, Any]) -> None:
        if hello.get("by") != self.by:
            super()._serve_blocks(stream, hello)
            return
        with self._lender(stream) as lender:
            wire.send_frame(stream, {})
            while True:
                stream.set_stall_timeout(None)
                request = wire.receive_frame(stream)
                stream.set_stall_timeout(LEND_STALLS * self._limits.stall_timeout_s)
                self._lend_or_refuse(stream, lender, request)

    def _lend_or_refuse(self, stream: Stream, lender: Lender, request: dict[str, Any]) -> None:
        try:
            answer = self._lend(stream, lender, request)
        except (PeerLostError, SyncTimeoutError, StillReachedError):
            raise
        except Exception as error:
            wire.send_error(stream, error)
        else:
            wire.send_frame(stream, answer)

    def _lend(self, stream: Stream, lender: Lender, request: dict[str, Any]) -> dict[str, Any]:
        match request:
            case {
                "do": (wire.WRITE | wire.READ) as do, "handle": str(handle),
                "offset_bytes": int(offset_bytes), "length_bytes": int(length_bytes),
            }:  # fmt: skip
                place = (bytes.fromhex(handle), offset_bytes, length_bytes)
            case _:
                raise ConfigError("the other host asks for what is not known here; use one version")
        if do == wire.READ:
            with self._shelf.reading(*place) as block:
                return self._lent(stream, lender, block, lambda: wire.digest_of(block).hex())[1]
        with self._shelf.writing(*place) as block:
            told, _ = self._lent(stream, lender, block, str)
            if told.get("digest") != wire.digest_of(block).hex():
                raise wire.damaged("written")
        return {}

    def _lent(
        self, stream: Stream, lender: Lender, block: memoryview, meanwhile: Callable[[], str]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Let the peer reach a block until it says that it is done.

        Returns:
            What it says, and what to answer: the digest that was made `meanwhile`.

        Raises:
            StillReachedError: It did not say so, and the block could not be taken back.
        """
        fields = lender.lend(block)
        try:
            wire.send_frame(stream, fields)
            digest = meanwhile()
            return wire.receive_frame(stream), {"digest": digest}
        except BaseException:
            try:
                lender.take_back(block)  # before the memory may be used for something else
            except Exception as error:
                raise StillReachedError(str(error)) from error
            raise


class Closeable(Protocol):
    """What is closed, once or more often."""

    def close(self) -> None: ...


R = TypeVar("R", bound=Closeable)


class Pinned(Generic[R]):
    """Memory of slots, registered when it is first lent, and as long as it is there.

    What was registered of a slot that is gone has ended before a new one is registered: that may
    be where the other has been, and not all that registers takes a place twice.

    Args:
        register: Registers the memory of a slot with what shall reach it. Raises StoreFullError
            where this process may not pin so much.
    """

    def __init__(self, register: Callable[[mmap.mmap], R]) -> None:
        self._register = register
        self._lock = threading.Lock()
        self._known: dict[int, tuple[weakref.ref[mmap.mmap], R]] = {}
        self._has_gone = False

    def of(self, block: memoryview) -> R:
        """What was registered of the slot that `block` is part of."""
        memory = _slot_of(block)
        try:
            with self._lock:
                self._close_gone()
                if id(memory) not in self._known:
                    registered = self._register(memory)
                    self._known[id(memory)] = (weakref.ref(memory, self._on_gone), registered)
                return self._known[id(memory)][1]
        finally:
            self._close_those_gone_meanwhile()

    def forget(self, block: memoryview) -> None:
        """Let nobody reach the slot until it is lent again. Raises what `close` raises."""
        try:
            with self._lock:
                _, registered = self._known.pop(id(_slot_of(block)), (None, None))
                if registered is not None:
                    registered.close()
        finally:
            self._close_those_gone_meanwhile()

    def _on_gone(self, _: object) -> None:
        self._has_gone = True
        self._close_those_gone_meanwhile()

    def _close_those_gone_meanwhile(self) -> None:
        # Who cannot have the lock may be its holder, who comes here when it is free.
        while self._has_gone and self._lock.acquire(blocking=False):
            try:
                self._close_gone()
            finally:
                self._lock.release()

    def _close_gone(self) -> None:
        self._has_gone = False
        for number, (memory, registered) in list(self._known.items()):
            if (slot := memory()) is None or slot.closed:
                del self._known[number]
                try:
                    registered.close()
                except Exception as error:  # whoever is here now wants another slot
                    logger.warning("memory that is gone stays registered: %s", error)


def _slot_of(block: memoryview) -> mmap.mmap:
    memory = block.obj
    assert isinstance(memory, mmap.mmap)
    return memory
