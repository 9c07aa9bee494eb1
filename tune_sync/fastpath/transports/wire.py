"""What goes over the TCP connections: numbers of fixed size, and small JSON objects. No pickles.

Control: frames of JSON, one answer to each request. Data: a `Request`, with a block behind it if it
is to be written, and an answer, with one if it was read; each block with its digest.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from tune_sync import errors
from tune_sync.errors import DamagedError
from tune_sync.fastpath.transports.shelf import HANDLE_BYTES
from tune_sync.fastpath.transports.stream import Stream
from tune_sync.fastpath.transports.transport import MAX_BLOCK_BYTES

# Both sides name it first: others are told so, and not misunderstood.
MAGIC = b"tune_sync memory 1\n"
MAX_FRAME_BYTES = 64 << 10
MAX_TEXT_CHARS = 4000
WRITE, READ = 1, 2
OK, FAILED = 0, 1

_LENGTH = struct.Struct("!I")
_REQUEST = struct.Struct(f"!B{HANDLE_BYTES}sQQ")
_REPLY = struct.Struct("!BQ")
_DIGEST_BYTES = 16
# Blocks are digested piece by piece, between two calls of the kernel, while they are in the caches.
# Measured beside others in docs/design/transports.md.
_PIECE_BYTES = 1 << 20
_SCRATCH_BYTES = 64 << 10
# What one side may raise at the other. Others become StoreError.
_ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        errors.ConfigError, errors.DamagedError, errors.ImmutableError, errors.NotWholeError,
        errors.PathRefusedError, errors.PeerLostError, errors.StoreFullError, FileNotFoundError,
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    """Write the block that follows, or read one.

    Attributes:
        do: `WRITE` or `READ`.
        handle: Of what is held by the peer.
        offset_bytes: Where in it.
        length_bytes: Of the block.
    """

    do: int
    handle: bytes
    offset_bytes: int
    length_bytes: int

    def send(self, stream: Stream, block: memoryview | None = None) -> None:
        """Send it, and the block."""
        fields = (self.do, self.handle, self.offset_bytes, self.length_bytes)
        stream.send(_REQUEST.pack(*fields), more=block is not None)
        if block is not None:
            _send_digested(stream, block)


def receive_request(stream: Stream) -> Request:
    """The next request.

    Raises:
        DamagedError: It is none.
    """
    request = Request(*_REQUEST.unpack(stream.receive(_REQUEST.size)))
    if request.do not in (WRITE, READ) or request.length_bytes > MAX_BLOCK_BYTES:
        raise DamagedError("what arrived is no request; the stream is cut")
    return request


def send_done(stream: Stream) -> None:
    """Answer that a block was written."""
    stream.send(_REPLY.pack(OK, 0))


def send_block(stream: Stream, block: memoryview) -> None:
    """Answer with a block that was asked for."""
    stream.send(_REPLY.pack(OK, len(block)), more=True)
    _send_digested(stream, block)


def send_failure(stream: Stream, error: Exception) -> None:
    """Answer that it failed."""
    text = json.dumps(_failure(error)).encode()
    stream.send(_REPLY.pack(FAILED, len(text)), more=True)
    stream.send(text)


def receive_reply(stream: Stream, block: memoryview | None) -> Exception | None:
    """The answer to a request; a block that was read is put into `block`, and compared.

    Returns:
        What the peer could not do, or why the block is not what was sent. None: it is there.

    Raises:
        DamagedError: It is no answer.
    """
    status, length_bytes = _REPLY.unpack(stream.receive(_REPLY.size))
    if status == FAILED and length_bytes <= MAX_FRAME_BYTES:
        return _exception(_parsed(stream.receive(length_bytes)))
    if status != OK or length_bytes != (0 if block is None else len(block)):
        raise DamagedError("what arrived is no answer; the stream is cut")
    if block is None:
        return None
    try:
        receive_block(stream, block)
    except DamagedError as error:
        return error
    return None


def receive_block(stream: Stream, block: memoryview) -> None:
    """Fill `block`, and compare it with the digest behind it.

    Raises:
        DamagedError: It is not what was sent. What comes next on the stream is understood.
    """
    digest = xxhash.xxh3_128()
    for piece in _pieces(block):
        stream.receive_into(piece)
        digest.update(piece)
    if stream.receive(_DIGEST_BYTES) != digest.digest():
        raise damaged("received")


def take_away(stream: Stream, length_bytes: int) -> None:
    """Receive a block that nobody wants, so that what comes next is understood."""
    scratch = memoryview(bytearray(min(length_bytes, _SCRATCH_BYTES)))
    while length_bytes:
        piece = scratch[: min(length_bytes, len(scratch))]
        stream.receive_into(piece)
        length_bytes -= len(piece)
    stream.receive(_DIGEST_BYTES)


def _send_digested(stream: Stream, block: memoryview) -> None:
    digest = xxhash.xxh3_128()
    for piece in _pieces(block):
        digest.update(piece)
        stream.send(piece, more=True)
    stream.send(digest.digest())


def _pieces(block: memoryview) -> Iterator[memoryview]:
    for at in range(0, len(block), _PIECE_BYTES):
        yield block[at : at + _PIECE_BYTES]


def digest_of(block: memoryview) -> bytes:
    """What a block is compared by."""
    return xxhash.xxh3_128_digest(block)


def damaged(what: str) -> DamagedError:
    """The error for a block that arrived otherwise than it was sent."""
    return DamagedError(f"a block that was {what} is not what was sent; send all of it again")


def send_frame(stream: Stream, fields: Mapping[str, Any]) -> None:
    """Send a small JSON object."""
    data = json.dumps(fields).encode()
    stream.send(_LENGTH.pack(len(data)) + data)


def receive_frame(stream: Stream) -> dict[str, Any]:
    """The next JSON object.

    Raises:
        DamagedError: It is none, or too large.
    """
    (length_bytes,) = _LENGTH.unpack(stream.receive(_LENGTH.size))
    if length_bytes > MAX_FRAME_BYTES:
        raise DamagedError("what arrived is no message; the stream is cut")
    return _parsed(stream.receive(length_bytes))


def send_error(stream: Stream, error: Exception) -> None:
    """Answer a control request with an error."""
    send_frame(stream, _failure(error))


def raised(answer: Mapping[str, Any]) -> Exception | None:
    """What the peer raised instead of doing what was asked; None if it did that."""
    return _exception(answer) if "error" in answer else None


def _failure(error: Exception) -> dict[str, str]:
    name = type(error).__name__
    text = str(error) if name in _ERRORS else f"{name}: {error}"
    return {"error": name, "text": text[:MAX_TEXT_CHARS]}


def _exception(fields: Mapping[str, Any]) -> Exception:
    kind = _ERRORS.get(str(fields.get("error")), errors.StoreError)
    return kind(str(fields.get("text")))


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DamagedError("what arrived is no message; the stream is cut")
    return found
