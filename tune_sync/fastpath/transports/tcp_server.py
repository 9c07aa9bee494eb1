"""The side of TCP that holds the memory: a thread for each connection, no buffers of its own.

A peer has one control connection. What it began there and did not publish is dropped when that
connection ends, however it ends. Its data connections end with it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import secrets
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from tune_sync.errors import ConfigError, PeerLostError, SyncTimeoutError
from tune_sync.fastpath.transports import wire
from tune_sync.fastpath.transports.handshake import greet
from tune_sync.fastpath.transports.shelf import Shelf
from tune_sync.fastpath.transports.stream import Stream
from tune_sync.fastpath.transports.transport import Limits, Server
from tune_sync.fastpath.transports.wire import Request

logger = logging.getLogger(__name__)

# Each is a thread. Peers have one connection and `Limits.stream_count`.
MOST_CONNECTIONS = 512
CLOSE_WAIT_S = 5.0
# How often it says that there are more.
SAY_S = 60.0
# What accept(2) says of a connection that has ended already, and not of this process.
_OF_A_PEER = (
    errno.ECONNABORTED, errno.EPERM, errno.EPROTO, errno.ENETDOWN, errno.ENOPROTOOPT,
    errno.EHOSTDOWN, errno.ENONET, errno.EHOSTUNREACH, errno.EOPNOTSUPP, errno.ENETUNREACH,
)  # fmt: skip
# Without a descriptor for one: others end meanwhile.
_PAUSE_S = 0.1


@dataclass(slots=True)
class _Session:
    """One peer. Guarded by the server's lock."""

    name: str = field(default_factory=lambda: secrets.token_hex(16))
    streams: set[Stream] = field(default_factory=set)
    begun: set[bytes] = field(default_factory=set)  # only its control thread uses it


class TcpServer(Server):
    """Serves a shelf to peers that know the token.

    Args:
        shelf: What they may write and read.
        listener: Where they connect.
        token: What they have to know.
        tls: Wraps connections; None: they are plain.
        limits: How long to wait for them.
    """

    def __init__(
        self, shelf: Shelf, listener: socket.socket, token: bytes,
        tls: ssl.SSLContext | None, limits: Limits,
    ) -> None:  # fmt: skip
        self._shelf = shelf
        self._listener = listener
        self._token = token
        self._tls = tls
        self._limits = limits
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}
        self._threads: dict[threading.Thread, Stream | None] = {}
        self._is_closed = False
        self._said_s = float("-inf")
        self.address = address_of(listener)
        threading.Thread(target=self._accept, name="tune_sync-accept", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            threads = dict(self._threads)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for stream in threads.values():
            if stream is not None:
                stream.cut()
        for thread in threads:
            thread.join(CLOSE_WAIT_S)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._is_closed:
                    return
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._say_full(f"{error}; raise what this process may have (ulimit -n)")
                elif error.errno in _OF_A_PEER:
                    logger.debug("a connection ended before it was taken: %s", error)
                else:
                    self._say("no connection to %s can be taken now: %s", str(error))
                time.sleep(_PAUSE_S)
                continue
            self._start(connection)

    def _start(self, connection: socket.socket) -> None:
        thread = threading.Thread(
            target=self._serve, args=(connection,), name="tune_sync-peer", daemon=True
        )
        with self._lock:
            if self._is_closed or len(self._threads) >= MOST_CONNECTIONS:
                why = (
                    f"more than {MOST_CONNECTIONS} are not taken, and a process that sends has up "
                    f"to {1 + self._limits.stream_count}"
                )
            else:
                try:
                    thread.start()  # with the lock: who closes joins those that it finds
                    self._threads[thread] = None
                    return
                except RuntimeError as error:  # no more threads: others end meanwhile
                    why = (
                        f"{error}; raise what this process may have (ulimit -u, pids.max of its "
                        "container's control group)"
                    )
        connection.close()
        self._say_full(why)

    def _say_full(self, why: str) -> None:
        self._say("too many connections to %s: %s", why)

    def _say(self, what: str, why: str) -> None:
        if not self._is_closed and time.monotonic() - self._said_s >= SAY_S:
            self._said_s = time.monotonic()
            logger.warning(what, self.address, why)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._greet(connection)
        except (PeerLostError, SyncTimeoutError, OSError) as error:
            logger.debug("a peer left: %s", error)
        except Exception as error:
            logger.warning("a peer's connection was cut: %s", error)
        finally:
            with self._lock:
                del self._threads[threading.current_thread()]

    def _greet(self, connection: socket.socket) -> None:
        who = "{}:{}".format(*connection.getpeername()[:2])
        # Not the shorter limit for connecting: a link may be cut while a transfer opens streams.
        connection.settimeout(self._limits.stall_timeout_s)
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True)
        stream = Stream(connection, who, self._limits.stall_timeout_s)
        try:
            self._know(stream)
            if not greet(stream, self._token):
                logger.warning("%s was refused: it does not know the token of this run", who)
                return
            hello = wire.receive_frame(stream)
            if "session" in hello:
                self._serve_data(stream, hello)
            else:
                self._serve_control(stream)
        finally:
            stream.close()

    def _know(self, stream: Stream) -> None:
        with self._lock:
            if self._is_closed:
                raise PeerLostError("closed")
            self._threads[threading.current_thread()] = stream

    def _serve_control(self, stream: Stream) -> None:
        session = _Session()
        with self._lock:
            self._sessions[session.name] = session
        session.streams.add(stream)
        try:
            wire.send_frame(stream, {"session": session.name})
            stream.set_stall_timeout(None)
            while True:
                self._answer(stream, session, wire.receive_frame(stream))
        finally:
            with self._lock:
                del self._sessions[session.name]
            self._end(session)
            for handle in session.begun:
                self._shelf.drop(handle)

    def _answer(self, stream: Stream, session: _Session, request: dict[str, Any]) -> None:
        try:
            answer = self._do(session, request)
        except Exception as error:
            wire.send_error(stream, error)
        else:
            wire.send_frame(stream, answer)

    def _do(self, session: _Session, request: dict[str, Any]) -> dict[str, Any]:
        match request:
            case {"do": "reserve", "key": str(key), "size_bytes": int(size_bytes)}:
                held = self._shelf.reserve(key, size_bytes)
                session.begun.add(held.handle)
                return {"handle": held.handle.hex()}
            case {"do": "publish", "handle": str(handle)}:
                self._shelf.publish(bytes.fromhex(handle))
                session.begun.discard(bytes.fromhex(handle))
            case {"do": "drop", "handle": str(handle)}:
                self._shelf.drop(bytes.fromhex(handle))
                session.begun.discard(bytes.fromhex(handle))
            case {"do": "find", "key": str(key)}:
                found = self._shelf.find(key)
                if found is not None:
                    return {"handle": found.handle.hex(), "size_bytes": found.size_bytes}
            case {"do": "remove", "key": str(key)}:
                self._shelf.remove(key)
            case _:
                raise ConfigError("the other host asks for what is not known here; use one version")
        return {}

    def _serve_data(self, stream: Stream, hello: dict[str, Any]) -> None:
        with self._lock:
            session = self._sessions.get(str(hello["session"]))
            if session is not None:
                session.streams.add(stream)
        if session is None:
            wire.send_error(stream, PeerLostError("its control connection ended; connect again"))
            return
        try:
            wire.send_frame(stream, {})
            self._serve_blocks(stream, hello)
        except SyncTimeoutError:
            self._end(session)  # a host without power sends no goodbye: its memory is free now
            raise
        finally:
            with self._lock:
                session.streams.discard(stream)

    def _serve_blocks(self, stream: Stream, hello: dict[str, Any]) -> None:
        """Move what is asked for, until the peer ends. `hello` is what it said first."""
        while True:
            stream.set_stall_timeout(None)
            request = wire.receive_request(stream)
            stream.set_stall_timeout(self._limits.stall_timeout_s)
            self._move(stream, request)

    def _end(self, session: _Session) -> None:
        with self._lock:
            streams = list(session.streams)
        for stream in streams:
            stream.cut()

    def _move(self, stream: Stream, request: Request) -> None:
        move = self._write if request.do == wire.WRITE else self._read
        try:
            move(stream, request)
        except (PeerLostError, SyncTimeoutError):
            raise
        except Exception as error:
            wire.send_failure(stream, error)

    def _write(self, stream: Stream, request: Request) -> None:
        place = (request.handle, request.offset_bytes, request.length_bytes)
        is_begun = False
        try:
            with self._shelf.writing(*place) as block:
                is_begun = True
                wire.receive_block(stream, block)
        except Exception:
            if not is_begun:
                wire.take_away(stream, request.length_bytes)
            raise
        wire.send_done(stream)

    def _read(self, stream: Stream, request: Request) -> None:
        place = (request.handle, request.offset_bytes, request.length_bytes)
        with self._shelf.reading(*place) as block:
            wire.send_block(stream, block)


def address_of(listener: socket.socket) -> str:
    """Where a listener listens, as `connect` takes it."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
