"""One process's part of one checkpoint on its way home: chunks, batches, digests, the seal."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

from tune_sync import layout
from tune_sync.errors import PathRefusedError, TuneSyncError
from tune_sync.homes.digests import digest_of
from tune_sync.homes.home import Home, NoLinksError
from tune_sync.layout import staged_key
from tune_sync.manifest import FileEntry, Seal
from tune_sync.metrics import plain_metrics
from tune_sync.new_pages import new_pages
from tune_sync.transfer.batch import Batch
from tune_sync.transfer.chunks import CHUNK_BYTES, DIRECT_BYTES, SMALL_BYTES, Chunks

# A batch leaves at this size: large enough that 10,000 small files need few messages, small
# enough to be on its way while the next one fills.
BATCH_BYTES = 16 << 20


class CheckpointUpload:
    """Collects what one process writes of one checkpoint. Methods may run in any thread.

    Args:
        home: Where it goes.
        checkpoint: Key of the checkpoint directory.
        rank: World rank of this process.
        clock: Seconds since the epoch.
        check_key: Raises PathRefusedError for the name of a file that the destination cannot keep.

    Attributes:
        attempt: Its id.
        rank: World rank of this process.
        began_s: When it was begun, of the monotonic clock.
        sealed_bytes: How much is sealed; None before that.
    """

    def __init__(
        self, home: Home, checkpoint: str, rank: int, clock: Callable[[], float] = time.time,
        check_key: Callable[[str], str] = layout.check_key,
    ) -> None:  # fmt: skip
        self.began_s = time.monotonic()
        self.sealed_bytes: int | None = None
        self.attempt, self.rank = home.begin(checkpoint), rank
        self._home, self._checkpoint = home, checkpoint
        self._clock, self._check_key = clock, check_key
        self._begun_by = threading.current_thread()
        self._entries: dict[str, FileEntry] = {}
        self._directories: set[str] = set()
        self._batch = Batch(BATCH_BYTES + SMALL_BYTES)
        self._open_count = self._sending_count = 0
        self._streams: WeakSet[UploadStream] = WeakSet()
        self._failure: Exception | None = None
        self._untold: Exception | None = None
        self._changed, self._sealed_s = True, 0.0  # each seal is later: clocks are set
        self._ranks_count: int | None = None
        self._metrics: dict[str, Any] | None = None
        self._contents = threading.Condition()
        self._seal_turn = threading.Lock()  # who comes second returns after the first has sealed

    @property
    def reported_as(self) -> str:
        """See `Home.reported_as`."""
        return self._home.reported_as(self.attempt)

    def key(self, inner: str) -> str:
        """Where the file `inner` of this attempt is staged. The attempt is over if that raises."""
        try:
            self._check_key(inner)
        except PathRefusedError as error:
            self._fail(error)
            raise
        return f"{staged_key(self._checkpoint, self.attempt)}/{inner}"

    def make_dir(self, inner: str) -> None:
        """Note a directory; it exists at the latest when the attempt is sealed."""
        layout.check_key(inner)
        with self._contents:
            while inner:
                self._directories.add(inner)
                inner = inner.rpartition("/")[0]
            self._note_change()

    def open(self, inner: str) -> UploadStream:
        """A stream that writes the file `inner`."""
        self.make_dir(inner.rpartition("/")[0])
        stream = UploadStream(self, inner)
        with self._contents:
            self._open_count += 1
            self._streams.add(stream)
        return stream

    def add_file(
        self, inner: str, source: Path, same_as: str = "", *, is_given: bool = False
    ) -> None:
        """Send a file of this node, without a copy of it in this process's memory.

        Args:
            inner: Its name in the checkpoint.
            source: The file.
            same_as: Name of an earlier file that is a hard link to the same bytes, or "".
            is_given: It may go from where it is, without being read.
        """
        known = self.entry(same_as)
        if known is not None and self._is_linked(inner, same_as):
            self.made(replace(known, path=inner))
            return
        is_small = source.stat().st_size <= SMALL_BYTES
        if is_given and self._is_taken(inner, source, is_given=True):
            return
        if not is_small and self._is_taken(inner, source, is_given=False):
            return
        if is_small:
            data = source.read_bytes()
            if len(data) <= SMALL_BYTES:  # else it has grown since
                self.make_dir(inner.rpartition("/")[0])
                self.add_small(inner, data, digest_of(data))
                return
        self._home.expect(self.key(inner), source.stat().st_size)
        with self.open(inner) as stream:
            _copy_from(source, stream, again=not self._home.keeps_chunks)

    def _is_linked(self, inner: str, same_as: str) -> bool:
        self.send_batch()
        self._wait_sent()
        self._home.flush(self.key(same_as))
        try:
            self._home.link(self.key(same_as), self.key(inner))
        except NoLinksError:
            return False
        return True

    def _is_taken(self, inner: str, source: Path, *, is_given: bool) -> bool:
        taken: list[FileEntry | None] = []
        key = self.key(inner)
        self._guarded(lambda: taken.append(self._home.take(key, source, is_given=is_given)))
        if taken[0] is None:
            return False
        self.make_dir(inner.rpartition("/")[0])
        self.made(replace(taken[0], path=inner))
        return True

    def add_small(self, inner: str, data: bytes | bytearray | memoryview, digest: str) -> None:
        """Put a small file into the batch."""
        with self._contents:
            self._batch.add(self.key(inner), data)
            self._entries[inner] = FileEntry(inner, len(data), digest)
            self._note_change()
            full = self._take_batch() if self._batch.size_bytes >= BATCH_BYTES else None
        if full is not None:
            self._send_taken(full)

    def send(self, inner: str, offset_bytes: int, data: bytes | memoryview) -> None:
        """Send a chunk of a large file."""
        self._guarded(lambda: self._home.write(self.key(inner), offset_bytes, data))

    def send_batch(self) -> None:
        """Send the small files collected so far."""
        with self._contents:
            batch = self._take_batch()
        self._send_taken(batch)

    def flush(self) -> None:
        """Wait until all sent chunks arrived."""
        self._guarded(lambda: self._home.flush(staged_key(self._checkpoint, self.attempt)))

    def finish(self, inner: str) -> None:
        """End a large file: it is at home when this returns."""
        self._guarded(lambda: self._home.finish(self.key(inner)))

    def made(self, entry: FileEntry) -> None:
        """Note a complete file."""
        with self._contents:
            self._entries[entry.path] = entry
            self._note_change()

    def entry(self, inner: str) -> FileEntry | None:
        """What is known of a complete file; None if it is not complete."""
        with self._contents:
            return self._entries.get(inner)

    def closed(self) -> None:
        """Note that one stream was closed."""
        with self._contents:
            self._open_count -= 1

    def copied(self, ranks_count: int, metrics: Mapping[Any, Any] | None = None) -> None:
        """Nothing more comes, so that the seal is that of a complete part.

        Raises:
            StoreError, OSError, …: It has failed, whoever was told before: see `seal`.
        """
        self.check()
        with self._contents:
            if not self._open_count and self._ranks_count != ranks_count:
                self._ranks_count = ranks_count
                self._metrics = None if metrics is None else plain_metrics(metrics)
                self._changed = True

    def check(self) -> None:
        """Raise what it failed with, whoever was told before."""
        if self._failure is not None:
            self._untold = None
            raise self._failure

    def tell_later(self, error: Exception) -> None:
        """Keep an error that whoever gets it now drops: `copied` raises it, or `seal`."""
        self._untold = error
        if self._failure is None:
            self._fail(error)

    @property
    def is_over(self) -> bool:
        """Sealed with nothing new since, or failed and told of."""
        with self._contents:
            is_open = self._failure is None and (self._changed or self._open_count)
            return self._untold is None and not is_open

    @property
    def is_of_another_thread(self) -> bool:
        """Whether another thread, which still runs, has not come to its end with it."""
        return self._is_in_other_hands() and not self.is_over

    @property
    def may_be_forgotten(self) -> bool:
        """Whether it is over, also for the thread that copies: that would begin a second half."""
        is_done = self._ranks_count is not None and self._failure is None
        return self.is_over and (is_done or not self._is_in_other_hands())

    def _is_in_other_hands(self) -> bool:
        if isinstance(self._begun_by, threading._DummyThread):  # of Arrow's, which never end
            with self._contents:  # a stream that was dropped, as its source failed, is not closed
                return any(not stream.closed for stream in self._streams)
        return self._begun_by is not threading.current_thread() and self._begun_by.is_alive()

    @property
    def directories_alone(self) -> frozenset[str] | None:
        """What was made before any file was begun; None if one was."""
        has_files = self._entries or self._open_count or self._failure is not None
        return None if has_files else frozenset(self._directories)

    @property
    def is_left_here(self) -> bool:
        """Whether this thread began it, and has not come to its end with it, nor sealed any of it.

        If it reports another one now, the copy has failed: nobody goes on with it.
        """
        mine = self._begun_by is threading.current_thread() and self._ranks_count is None
        return mine and self.sealed_bytes is None and not self.is_over

    def seal(self) -> bool:
        """Make what was written so far durable at home, if anything changed.

        Returns:
            Whether it was sealed by this call. Not while a stream is open, and not after a
            failure that was raised before.

        Raises:
            StoreError, OSError, …: What went wrong; the attempt is dropped then, and the
                checkpoint has to be reported again.
        """
        with self._seal_turn:
            untold, self._untold = self._untold, None
            if untold is not None:
                raise untold
            with self._contents:
                if self._failure is not None or not self._changed or self._open_count:
                    return False
                # What is sealed is what was complete at this moment; another thread may go on.
                batch = self._take_batch()
                files = tuple(sorted(self._entries.values(), key=lambda e: e.path))
                directories = tuple(sorted(self._directories))
                ranks_count, metrics = self._ranks_count, self._metrics
                self._changed = False
            self._send_taken(batch)
            self._wait_sent()
            self.flush()
            self._sealed_s = max(self._clock(), math.nextafter(self._sealed_s, math.inf))
            given = self.rank, self._sealed_s, files, directories, ranks_count
            seal = Seal(self.attempt, *given, metrics=metrics)
            self._guarded(lambda: self._home.seal(self._checkpoint, seal))
            self.sealed_bytes = sum(file.size_bytes for file in files)
            return True

    def abort(self) -> None:
        """Drop the attempt; its late writes fail. Best effort: the next start sweeps the rest."""
        with suppress(TuneSyncError, OSError):
            self._home.discard_attempt(self._checkpoint, self.attempt)

    def _note_change(self) -> None:
        """What is sealed by now is not all. Call it with `_contents`."""
        self._changed = True
        self._ranks_count = None

    def _take_batch(self) -> Batch:
        """The batch, to be sent with `_send_taken`. Call it with `_contents`."""
        batch, self._batch = self._batch, Batch(BATCH_BYTES + SMALL_BYTES)
        self._sending_count += 1
        return batch

    def _send_taken(self, batch: Batch) -> None:
        try:
            if batch.pieces:
                self._guarded(lambda: self._home.write_batch(batch.pieces, batch.data))
        finally:
            with self._contents:
                self._sending_count -= 1
                self._contents.notify_all()

    def _wait_sent(self) -> None:
        """Wait until no thread is between taking a batch and having sent it."""
        with self._contents:
            self._contents.wait_for(lambda: not self._sending_count)

    def _guarded(self, act: Callable[[], None]) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            act()
        except Exception as error:
            self._fail(error)
            raise

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self.abort()


class UploadStream:
    """A file object for one file of a `CheckpointUpload`; what pyarrow writes into."""

    def __init__(self, upload: CheckpointUpload, inner: str) -> None:
        self._upload = upload
        self._inner = inner
        self._chunks = Chunks(lambda offset_bytes, data: upload.send(inner, offset_bytes, data))
        self.closed = False

    def write(self, data: bytes | memoryview) -> int:
        """Take bytes; sends full chunks. Returns how many were taken."""
        return self._chunks.write(data)

    def flush(self) -> None:
        """Nothing: bytes leave in chunks, and are safe when the checkpoint is sealed."""

    def close(self) -> None:
        """As `finish`, for pyarrow, which drops what this raises: `tell_later` keeps it."""
        try:
            self.finish()
        except BaseException as error:
            self._upload.tell_later(error if isinstance(error, Exception) else OSError(repr(error)))
            raise

    def finish(self) -> None:
        """End the file. A large file is at home when this returns. May be called twice."""
        if self.closed:
            return
        self.closed = True
        self._upload.closed()
        chunks = self._chunks
        if not chunks.sent_bytes and len(chunks.held) <= SMALL_BYTES:
            self._upload.add_small(self._inner, chunks.held, chunks.digest)
            return
        chunks.finish()
        self._upload.finish(self._inner)
        self._upload.made(FileEntry(self._inner, chunks.sent_bytes, chunks.digest))

    def __enter__(self) -> UploadStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        elif not self.closed:
            self.closed = True
            self._upload.closed()


def _copy_from(source: Path, stream: UploadStream, *, again: bool) -> None:
    """Write all of a file; with `again`, each chunk from the same memory."""
    # Not by mapping the file, whose owner may change it: what is digested has to be what is sent.
    with open(source, "rb", buffering=0) as file:
        has_bytes = os.fstat(file.fileno()).st_size
        part_bytes = 2 * DIRECT_BYTES if has_bytes <= 2 * DIRECT_BYTES else DIRECT_BYTES
        most = min(CHUNK_BYTES, max(has_bytes, SMALL_BYTES))
        room = bytearray(most) if again else new_pages(part_bytes)
        while size_bytes := file.readinto(room):
            stream.write(memoryview(room)[:size_bytes])
            room = room if again else new_pages(part_bytes)
