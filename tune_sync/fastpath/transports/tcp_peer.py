"""The side of TCP that writes into, and reads from, the memory of another host."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tune_sync.errors import ConfigError, PeerLostError, SyncTimeoutError, TuneSyncError
from tune_sync.fastpath.transports import wire
from tune_sync.fastpath.transports.lanes import LaneMaker, Lanes
from tune_sync.fastpath.transports.shelf import Held
from tune_sync.fastpath.transports.stream import Stream
from tune_sync.fastpath.transports.transfer import Transfer
from tune_sync.fastpath.transports.transport import (
    RESERVE_TIMEOUT_S,
    Limits,
    Part,
    Peer,
    Region,
    Upload,
    check_parts,
)


class TcpPeer(Peer):
    """One control connection, and data connections from the first transfer on.

    Args:
        connect: Opens a connection, given what to say first; returns it with the answer.
        limits: How much at once, and how long to wait.
        make_lane: Makes what moves blocks over a connection.
    """

    def __init__(
        self,
        connect: Callable[[dict[str, str]], tuple[Stream, dict[str, Any]]],
        limits: Limits,
        make_lane: LaneMaker | None = None,
    ) -> None:
        self._limits = limits
        self._control, answer = connect({})
        hello = {"session": str(answer.get("session"))}
        self._lanes = Lanes(lambda: connect(hello)[0], self._lose, limits, make_lane)
        self._turn = threading.Lock()  # one request at a time, with its answer
        self._lost: Exception | None = None

    def reserve(self, key: str, size_bytes: int, *, timeout_s: float = RESERVE_TIMEOUT_S) -> Upload:
        answer = self._ask({"do": "reserve", "key": key, "size_bytes": size_bytes}, timeout_s)
        return _TcpUpload(self, Held(key, size_bytes, bytes.fromhex(answer["handle"])))

    def find(self, key: str) -> Held | None:
        answer = self._ask({"do": "find", "key": key})
        if not answer:
            return None
        return Held(key, int(answer["size_bytes"]), bytes.fromhex(answer["handle"]))

    def read(self, held: Held, region: Region, parts: Sequence[Part]) -> Transfer:
        if region.view.readonly:
            raise ConfigError(
                "memory that cannot be written cannot be read into; give other memory"
            )
        return self.move(wire.READ, held, region, parts)

    def remove(self, key: str) -> None:
        self._ask({"do": "remove", "key": key})

    def close(self) -> None:
        self._lose(PeerLostError("the connection was closed here; connect again"))
        self._lanes.join()
        with self._turn:  # whoever waited for an answer has gone: the connection was cut
            self._control.close()

    def publish(self, handle: bytes) -> None:
        """Make an attempt visible; see `Upload.publish`."""
        self._ask({"do": "publish", "handle": handle.hex()})

    def drop(self, handle: bytes) -> None:
        """End an attempt; see `Upload.drop`."""
        with contextlib.suppress(TuneSyncError):  # a peer that is lost drops it by itself
            self._ask({"do": "drop", "handle": handle.hex()})

    def move(self, do: int, held: Held, region: Region, parts: Sequence[Part]) -> Transfer:
        """Start to write or read."""
        check_parts(region, parts, held.size_bytes)
        return self._lanes.start(do, held.handle, region, parts)

    def _ask(self, request: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        timeout_s = timeout_s or self._limits.stall_timeout_s
        if not self._turn.acquire(timeout=RESERVE_TIMEOUT_S):
            raise SyncTimeoutError("other requests to this peer do not end; connect again")
        try:
            if self._lost is not None:
                raise self._lost
            self._control.set_stall_timeout(timeout_s)
            wire.send_frame(self._control, request)
            answer = wire.receive_frame(self._control)
        except TuneSyncError as error:
            self._lose(error)
            raise self._lost or error from None
        finally:
            self._turn.release()
        if (refusal := wire.raised(answer)) is not None:
            raise refusal
        return answer

    def _lose(self, error: Exception) -> None:
        """Give this peer up: it then drops what was not published."""
        self._lost = self._lost or error
        self._control.cut()
        self._lanes.close(error)


class _TcpUpload(Upload):
    def __init__(self, peer: TcpPeer, held: Held) -> None:
        self._peer = peer
        self.held = held
        self._is_over = False

    def write(self, region: Region, parts: Sequence[Part]) -> Transfer:
        return self._peer.move(wire.WRITE, self.held, region, parts)

    def publish(self) -> None:
        self._peer.publish(self.held.handle)
        self._is_over = True

    def drop(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._peer.drop(self.held.handle)
