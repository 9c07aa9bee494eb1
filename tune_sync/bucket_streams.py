"""`ObjectStream`: one object that is written chunk by chunk, while a thread sends it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

# What waits for the client of the store; the client itself holds its parts.
CHUNKS_WAITING_COUNT = 1
# How often a writer that waits for room looks whether the upload has failed.
LOOK_S = 0.5
# Up to this an object is put by one request: only that can have a condition. It is what the client
# would hold before it sends a first part.
WHOLE_BYTES = 32 << 20


class GivenUpError(Exception):
    """The writer gave up the object."""


class ObjectStream:
    """Methods may be called from one thread at a time.

    Args:
        put_whole: Stores all bytes of an object, by one request.
        put: Stores chunks as one object and returns its e-tag; raises what an iterator raises.
        check: Called before the upload is completed; raises if the object is not to appear.
    """

    def __init__(
        self, put_whole: Callable[[bytes], str], put: Callable[[Iterator[bytes]], str],
        check: Callable[[], None],
    ) -> None:  # fmt: skip
        self._put_whole = put_whole
        self._put = put
        self._check_own = check
        self._held: list[bytes] = []
        self._waiting: queue.Queue[bytes | None] = queue.Queue(CHUNKS_WAITING_COUNT)
        self._given_up = threading.Event()
        self._error: BaseException | None = None
        self._etag = ""
        self.taken_bytes = 0
        self._thread: threading.Thread | None = None

    def write(self, data: bytes | memoryview) -> None:
        """Take a chunk; waits for room. Raises what went wrong with the upload."""
        self.taken_bytes += len(data)
        if self._thread is None:
            self._held.append(bytes(data))
            if self.taken_bytes > WHOLE_BYTES:
                self._start()
        else:
            self._add(bytes(data))

    def finish(self) -> str:
        """End the object: durable when this returns its e-tag. Raises as `write` does."""
        if self._thread is None:
            self._check()
            return self._put_whole(b"".join(self._held))
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
            self._add(chunk)

    def _add(self, chunk: bytes | None) -> None:
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

    def _chunks(self) -> Iterator[bytes]:
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
