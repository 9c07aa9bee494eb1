"""`ObjectStream`: one object that is written chunk by chunk, while a thread sends it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

from tune_sync.buckets.bucket import MAX_UNKNOWN_BYTES
from tune_sync.buckets.files import WHOLE_BYTES
from tune_sync.buckets.pieces import piece_of
from tune_sync.errors import ConfigError

# What waits for the client of the store; the client itself holds its parts.
CHUNKS_WAITING_COUNT = 1
# Larger chunks are cut: what waits is small, and the first bytes leave at once.
PIECE_BYTES = 4 << 20
# How often a writer that waits for room looks whether the upload has failed.
LOOK_S = 0.5
TELL_SIZE = "report it with tune_sync.Checkpoint.from_directory, which tells the size"


def too_large(limit_bytes: int, larger: str) -> ConfigError:
    """The error for a file that does not fit into one object."""
    way_out = larger or "divide it"
    return ConfigError(
        f"a file of more than {limit_bytes} bytes does not fit into an object here: {way_out}"
    )


class GivenUpError(Exception):
    """The writer gave up the object."""


class ObjectStream:
    """Methods may be called from one thread at a time.

    Args:
        put_whole: Stores all bytes of an object, by one request.
        put: Stores chunks as one object and returns its e-tag; raises what an iterator raises.
        check: Called before the last chunk is let go; raises if the object is not to appear.
        limit_bytes: How many there may be.
        larger: What to do about a larger file, for messages.
    """

    def __init__(
        self, put_whole: Callable[[bytes | memoryview], str],
        put: Callable[[Iterator[memoryview]], str], check: Callable[[], None],
        limit_bytes: int = MAX_UNKNOWN_BYTES, larger: str = "",
    ) -> None:  # fmt: skip
        self._put_whole = put_whole
        self._put = put
        self._check_own = check
        self._limit_bytes = limit_bytes
        self._larger = larger
        self._held: list[memoryview] = []
        self._waiting: queue.Queue[memoryview | None] = queue.Queue(CHUNKS_WAITING_COUNT)
        self._given_up = threading.Event()
        self._error: BaseException | None = None
        self._etag = ""
        self.taken_bytes = 0
        self._thread: threading.Thread | None = None

    def write(self, data: bytes | memoryview) -> None:
        """Take a chunk; waits for room. Raises what went wrong with the upload."""
        view = memoryview(data)
        self.taken_bytes += len(view)
        if self.taken_bytes > self._limit_bytes:
            raise too_large(self._limit_bytes, self._larger)
        if self._thread is None and self.taken_bytes > WHOLE_BYTES:
            self._start()
        if self._thread is None:
            self._held.append(piece_of(view))
        else:
            self._add_pieces(view)

    def take_whole(self) -> bytes | memoryview | None:
        """All bytes, if they are few enough for one request: then the caller ends the object."""
        if self._thread is not None:
            return None
        self._check()
        held, self._held = self._held, []
        return held[0] if len(held) == 1 else b"".join(held)

    def finish(self) -> str:
        """End the object: durable when this returns its e-tag. Raises as `write` does."""
        if self._thread is None:
            return self._put_whole(self.take_whole() or b"")
        # No library knows a condition for an upload in parts: this is as late as we can look. Not
        # in the thread that sends: there obstore asks for chunks, and takes no other request.
        try:
            self._check_own()
        except BaseException:
            self.abort()
            raise
        self._add(None)
        self._thread.join()
        self._check()
        return self._etag

    def abort(self) -> None:
        """Give the object up. Returns when nothing more is sent."""
        self._given_up.set()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._send, name="tune_sync-object", daemon=True)
        self._thread.start()
        held, self._held = self._held, []
        for chunk in held:
            self._add_pieces(chunk)

    def _add_pieces(self, data: memoryview) -> None:
        for start in range(0, len(data), PIECE_BYTES):
            self._add(piece_of(data[start : start + PIECE_BYTES]))

    def _add(self, chunk: memoryview | None) -> None:
        while True:
            self._check()
            try:
                self._waiting.put(chunk, timeout=LOOK_S)
                return
            except queue.Full:
                continue

    def _check(self) -> None:
        if self._given_up.is_set():
            raise GivenUpError("this upload was given up; report the checkpoint again")
        if self._error is not None:
            raise self._error

    def _chunks(self) -> Iterator[memoryview]:
        while True:
            if self._given_up.is_set():
                raise GivenUpError("the upload was given up")
            try:
                chunk = self._waiting.get(timeout=LOOK_S)
            except queue.Empty:
                continue
            if chunk is None:
                return
            yield chunk

    def _send(self) -> None:
        try:
            self._etag = self._put(self._chunks())
        except Exception as error:
            self._error = error
        except BaseException as error:  # a panic of a library, which `except Exception` lets pass
            self._error = OSError(f"the upload broke off: {error!r}")
            self._error.__cause__ = error
