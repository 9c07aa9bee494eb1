"""A TCP connection with a deadline on every wait, plain or within TLS."""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
import struct

from tune_sync.errors import PeerLostError, SyncTimeoutError

# A host without power sends no goodbye. The kernel asks after 10 s of silence, every 5 s, 6 times.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)
_TIMEVAL = struct.Struct("@ll")


class Stream:
    """One connection. One thread sends and receives; any may `cut` it.

    Args:
        connection: Connected; closed with the stream.
        peer: Names the other side in errors.
        stall_timeout_s: How long one wait may take in which no byte moves. A process that was
            stopped fails nothing by that: what moved meanwhile, within the kernel, is looked at
            first; and without TLS the kernel begins the limit anew.
    """

    def __init__(self, connection: socket.socket, peer: str, stall_timeout_s: float) -> None:
        self._connection = connection
        self._peer = peer
        self._stall_timeout_s = stall_timeout_s
        self._is_tls = isinstance(connection, ssl.SSLSocket)
        # Without TLS a blocking socket whose waits the kernel ends takes a block in one call.
        self._all = 0 if self._is_tls else socket.MSG_WAITALL
        self._more = 0 if self._is_tls else socket.MSG_MORE
        for option in _KEEPALIVE:
            connection.setsockopt(*option)
        self.set_stall_timeout(stall_timeout_s)

    def set_stall_timeout(self, timeout_s: float | None) -> None:
        """How long a wait may take from now on; None: until the kernel finds the host dead."""
        self._stall_timeout_s = timeout_s or 0.0
        if self._is_tls:
            self._connection.settimeout(timeout_s)
            return
        self._connection.settimeout(None)
        whole_s, part_s = divmod(self._stall_timeout_s, 1)
        limit = _TIMEVAL.pack(int(whole_s), int(part_s * 1e6))
        for name in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._connection.setsockopt(socket.SOL_SOCKET, name, limit)

    def send(self, data: bytes | memoryview, *, more: bool = False) -> None:
        """Send all of `data`.

        Args:
            data: What to send.
            more: Something follows at once.

        Raises:
            PeerLostError: The connection ended.
            SyncTimeoutError: No byte moved in time.
        """
        view = memoryview(data)
        while view:
            try:
                view = view[self._connection.send(view, self._more if more else 0) :]
            except OSError as error:
                raise self._lost(error) from error

    def receive_into(self, view: memoryview) -> None:
        """Fill `view`. Raises as `send` does."""
        while view:
            try:
                got = self._connection.recv_into(view, 0, self._all)
            except OSError as error:
                raise self._lost(error) from error
            if not got:
                raise PeerLostError(f"{self._peer} closed the connection; connect again")
            view = view[got:]

    def receive(self, length_bytes: int) -> bytes:
        """The next `length_bytes`. Raises as `send` does."""
        data = bytearray(length_bytes)
        self.receive_into(memoryview(data))
        return bytes(data)

    def fileno(self) -> int:
        """Its descriptor, for those who wait for more than one thing."""
        return self._connection.fileno()

    @property
    def local_host(self) -> str:
        """Address of this host on it."""
        return str(self._connection.getsockname()[0])

    def cut(self) -> None:
        """End it at once, whoever waits for it. May be called twice and from any thread."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut it and free it. By the thread that sends and receives."""
        self.cut()
        self._connection.close()

    def _lost(self, error: OSError) -> Exception:
        if _is_timeout(error):
            return SyncTimeoutError(
                f"no byte moved to or from {self._peer} for {self._stall_timeout_s} s; "
                "try again, or raise the stall timeout"
            )
        return PeerLostError(f"{self._peer} is gone: {error}; connect again")


def _is_timeout(error: OSError) -> bool:
    if error.errno == errno.ETIMEDOUT:  # the kernel gave the connection up
        return False
    return isinstance(error, (BlockingIOError, TimeoutError, ssl.SSLWantReadError))
