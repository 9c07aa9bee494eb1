"""Memory to memory over TCP: plain sockets, from slot into slot, with no copy of ours between."""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any

from tune_sync.errors import ConfigError, PeerLostError, PeerRefusedError, SyncTimeoutError
from tune_sync.fastpath.tls import Tls
from tune_sync.fastpath.transport_names import TCP
from tune_sync.fastpath.transports import wire
from tune_sync.fastpath.transports.handshake import check_token, introduce
from tune_sync.fastpath.transports.shelf import Shelf
from tune_sync.fastpath.transports.stream import Stream
from tune_sync.fastpath.transports.tcp_peer import TcpPeer
from tune_sync.fastpath.transports.tcp_server import TcpServer
from tune_sync.fastpath.transports.transport import Limits, Peer, Transport


class TcpTransport(Transport):
    """TCP between hosts that know one token.

    Without TLS, what is sent can be read and changed by who controls the network between; the
    token is not sent, and digests find what changed by chance.

    Args:
        token: Random bytes that only this run's agents have; at least 16.
        tls: Certificates; None: no TLS.
        limits: How much at once, and how long to wait.

    Raises:
        ConfigError: The token can be guessed, or a file of `tls` cannot be used.
    """

    name = TCP

    def __init__(self, token: bytes, *, tls: Tls | None = None, limits: Limits = Limits()) -> None:  # noqa: B008
        check_token(token)
        self._token = token
        self._limits = limits
        self._server_tls = tls.context(is_server=True) if tls else None
        self._client_tls = tls.context(is_server=False) if tls else None

    def __repr__(self) -> str:
        return f"TcpTransport(tls={self._client_tls is not None}, {self._limits})"

    def missing(self) -> str:
        return ""

    def serve(self, shelf: Shelf, host: str, port: int = 0) -> TcpServer:
        listener = listen(host, port)
        return TcpServer(shelf, listener, self._token, self._server_tls, self._limits)

    def connect(self, address: str) -> Peer:
        return TcpPeer(self._opener(address), self._limits)

    def _opener(self, address: str) -> Callable[[dict[str, str]], tuple[Stream, dict[str, Any]]]:
        """Opens connections to `address`, given what to say first."""
        place = host_and_port(address)
        return lambda hello: self._open(address, place, hello)

    def _open(
        self, address: str, place: tuple[str, int], hello: dict[str, str]
    ) -> tuple[Stream, dict[str, Any]]:
        is_first = not hello  # later ones belong to a transfer, which outlives a cut of the link
        limits = self._limits
        timeout_s = limits.connect_timeout_s if is_first else limits.stall_timeout_s
        try:
            connection = socket.create_connection(place, timeout_s)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # which says nothing of that host
                raise PeerLostError(
                    f"no connection to {address}: {error}; raise what this process may have "
                    "(ulimit -n)"
                ) from error
            raise PeerLostError(
                f"nobody answers at {address}: {error}; is that host up?"
            ) from error
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            connection = self._wrapped(connection, address)
            undo.callback(connection.close)
            stream = Stream(connection, address, timeout_s)
            answer = self._introduce(stream, address, hello)
            undo.pop_all()
        stream.set_stall_timeout(self._limits.stall_timeout_s)
        return stream, answer

    def _introduce(self, stream: Stream, address: str, hello: dict[str, str]) -> dict[str, Any]:
        try:
            introduce(stream, self._token, address)
            wire.send_frame(stream, hello)
            answer = wire.receive_frame(stream)
        except (PeerLostError, SyncTimeoutError) as error:
            if _is_refusal(error.__cause__):
                raise _no_tls(address, error.__cause__) from error
            if hello and isinstance(error, SyncTimeoutError):
                raise
            raise PeerLostError(
                f"{address} does not answer as tune_sync does: {error}; is it up, is TLS used on "
                "both hosts, or on none, and does its log tell of too many connections?"
            ) from error
        if (failure := wire.raised(answer)) is not None:
            raise failure
        return answer

    def _wrapped(self, connection: socket.socket, address: str) -> socket.socket:
        if self._client_tls is None:
            return connection
        try:
            return self._client_tls.wrap_socket(connection)
        except OSError as error:
            if _is_refusal(error):
                raise _no_tls(address, error) from error
            raise PeerLostError(f"{address} is gone: {error}; connect again") from error


def listen(host: str, port: int) -> socket.socket:
    """A socket that peers connect to."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


def _is_refusal(error: BaseException | None) -> bool:
    is_tls = isinstance(error, ssl.SSLError)
    return is_tls and not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError))


def _no_tls(address: str, error: BaseException | None) -> PeerRefusedError:
    return PeerRefusedError(
        f"no TLS with {address}: {error}; use TLS on both hosts, with certificates that one "
        "authority signed"
    )


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of it. Raises ConfigError if it is no address."""
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigError(f"{address!r} is no address; give HOST:PORT")
    return host.strip("[]"), int(port)
