"""Something between two hosts that harms what passes: it changes, stops, or ends it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

TO_SERVER, TO_CLIENT = "to server", "to client"
Harm = Callable[[str, bytes], bytes]


class Relay:
    """Passes connections on to `address`.

    Args:
        address: host:port.
        harm: Called with the direction and each piece of bytes; what it returns is passed on.
    """

    def __init__(self, address: str, harm: Harm = lambda direction, data: data) -> None:
        host, port = address.split(":")
        self._target = host, int(port)
        self.harm = harm
        self.may_pass = threading.Event()
        self.may_pass.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.may_pass.set()
        self.end_all()

    def end_all(self) -> None:
        """End all connections."""
        for end in list(self._sockets):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._sockets += [client, server]
            for direction, one, other in ((TO_SERVER, client, server), (TO_CLIENT, server, client)):
                pump = threading.Thread(target=self._pump, args=(direction, one, other))
                pump.daemon = True
                pump.start()

    def _pump(self, direction: str, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                self.may_pass.wait()
                other.sendall(self.harm(direction, data))
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def flip_after(direction: str, count_bytes: int) -> Harm:
    """Flips one bit, once, when so many bytes have passed in large pieces that way."""
    seen_bytes = 0

    def harm(way: str, data: bytes) -> bytes:
        nonlocal seen_bytes
        if way != direction or len(data) < 1 << 12:  # small ones are requests and answers
            return data
        before, seen_bytes = seen_bytes, seen_bytes + len(data)
        if before <= count_bytes < seen_bytes:
            changed = bytearray(data)
            changed[len(data) // 2] ^= 1
            return bytes(changed)
        return data

    return harm
