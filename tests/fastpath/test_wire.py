"""What arrives as a message, and is none."""

from __future__ import annotations

import socket
import struct

import pytest

from tune_sync.errors import DamagedError
from tune_sync.fastpath.transports import wire
from tune_sync.fastpath.transports.stream import Stream


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b"\xff", b'{"a":' * 12_000, b"[" * wire.MAX_FRAME_BYTES]
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as sender,
        listener.accept()[0] as receiver,
    ):
        sender.sendall(struct.pack("!I", len(data)) + data)
        with pytest.raises(DamagedError, match="is no message; the stream is cut"):
            wire.receive_frame(Stream(receiver, "the other host", 30.0))
