"""File objects that pyarrow reads from and writes into, apart from checkpoints (`upload`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

import pyarrow.fs as pafs

from tune_sync.errors import StoreError, TuneSyncError
from tune_sync.homes.home import Home
from tune_sync.homes.store import Info
from tune_sync.manifest import FileEntry
from tune_sync.transfer.chunks import SMALL_BYTES, Chunks
from tune_sync.transfer.digests import Checker

# Of a file's bytes, and the home that they go to: a context in which the file is put in its place.
Storing = Callable[[bytes, Home], AbstractContextManager[None]]

# Only who copies asks for more at once, and asks again until there is nothing more.
COPY_BYTES = 16 << 20


class NullStream:
    """Takes bytes and keeps none: for names that are not to be sent."""

    closed = False

    def write(self, data: bytes | memoryview) -> int:
        """Take bytes."""
        return len(data)

    def flush(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """End."""
        self.closed = True


class FileStream:
    """Writes one file, which appears whole, or not at all, when it is closed.

    Args:
        home: Where it goes.
        key: Its place.
        on_close: Called once, to commit it.
        on_error: Called with what went wrong, before it is raised.
    """

    def __init__(
        self, home: Home, key: str, on_close: Callable[[FileStream], None],
        on_error: Callable[[Exception], None] = lambda error: None,
    ) -> None:  # fmt: skip
        self._home = home
        self._key = key
        self._on_close = on_close
        self._on_error = on_error
        self._chunks = Chunks(self._send)
        self._incoming = ""
        self._is_given_up = False
        self.closed = False

    @property
    def digest(self) -> str:
        """xxh3_128 of all bytes so far."""
        return self._chunks.digest

    @property
    def held_bytes(self) -> int:
        """How much of it is in memory."""
        return len(self._chunks.held)

    def write(self, data: bytes | memoryview) -> int:
        """Take bytes."""
        try:
            return self._chunks.write(data)
        except Exception as error:
            self.give_up()
            self._on_error(error)
            raise

    def flush(self) -> None:
        """Nothing: the file appears on close."""

    def close(self) -> None:
        """Commit the file. May be called twice."""
        if self.closed:
            return
        self.closed = True
        try:
            self._on_close(self)
        except Exception as error:
            self.give_up()
            self._on_error(error)
            raise

    def commit(self, durable: bool, unless: str | None) -> None:
        """Put the file in its place, unless its digest is `unless` and nothing was sent yet.

        Nothing of it stays where that fails.

        Raises:
            StoreError: It was dropped: what it had sent is gone, and the rest is no file.
            Exception: What the home raises.
        """
        if not self._chunks.sent_bytes and unless == self.digest:
            return
        is_small = not self._chunks.sent_bytes and self.held_bytes <= SMALL_BYTES
        try:
            if is_small and not self._is_given_up:
                self._home.put_file(self._key, self._chunks.held, durable)
                return
            self._chunks.finish()
            if not self._incoming:
                self._send(0, memoryview(b""))  # raises, as it was given up
            self._home.flush(self._incoming)
            self._home.commit_file(self._incoming, self._key, durable)
        except Exception:
            self.give_up()
            raise

    def drop(self) -> None:
        """Give up a file that was not committed: a newer one takes its place, or it failed."""
        incoming, self._incoming, self._is_given_up = self._incoming, "", True
        if incoming:
            self._home.drop_file(incoming)

    def give_up(self) -> None:
        """`drop`, as its next version may need the room. Best effort: a start sweeps the rest.

        A home that may not answer is not waited for long; see `Home.drop_file`.
        """
        with suppress(TuneSyncError, OSError):
            self.drop()

    def _send(self, offset_bytes: int, data: memoryview) -> None:
        if self._is_given_up:
            raise StoreError(f"{self._key} was given up before it was put in its place")
        if not self._incoming:
            self._incoming = self._home.begin_file()
        self._home.write(self._incoming, offset_bytes, data)


class CopiedStream(FileStream):
    """A `FileStream` that keeps a copy of what is written into it.

    Attributes:
        body: That copy.
    """

    body = b""

    def write(self, data: bytes | memoryview) -> int:
        """Take bytes."""
        self.body += bytes(data)
        return super().write(data)


class StateStream(CopiedStream):
    """That of a state of Ray Tune.

    Attributes:
        arrived: See `Versions.copying`.
        version: See `SearchOrder.read_state`.
        made_count: See `Versions.made_count`; -1: it is not known.
    """

    arrived: Callable[[], None] = staticmethod(lambda: None)
    version = 0
    made_count = -1


class SearchStream(FileStream):
    """That of a search: a trial that it has made, and no state names, a restore would leave out.

    Attributes:
        needed: See `SearchOrder.read_search`.
    """

    needed: Callable[[], int] = staticmethod(lambda: 0)


class ReadStream:
    """Reads one file of a home that is elsewhere; what is read in a row is checked."""

    def __init__(
        self, home: Home, key: str, size_bytes: int, checker: Checker | None = None,
        step_bytes: int | None = None,
    ) -> None:  # fmt: skip
        self._home = home
        self._key = key
        self._checker = checker or Checker(None, key, size_bytes)
        self._size_bytes = size_bytes
        self._step_bytes = step_bytes or size_bytes
        self._position = 0
        self.closed = False

    def read(self, length_bytes: int = -1) -> bytes | memoryview:
        """The next bytes; fewer at the end."""
        left = self._size_bytes - self._position
        wanted = left if length_bytes is None or length_bytes < 0 else min(length_bytes, left)
        if wanted <= 0:
            return b""
        # Who asks for the whole rest by its length takes less for its end.
        if (length_bytes or 0) > COPY_BYTES and length_bytes != left:
            wanted = min(wanted, self._step_bytes)
        data = self._home.read(self._key, self._position, wanted)
        self._checker.saw(self._position, data)
        self._position += len(data)
        return data

    def seek(self, position: int, whence: int = 0) -> int:
        """Move to a position; `whence` as for any file object."""
        base = {0: 0, 1: self._position, 2: self._size_bytes}[whence]
        self._position = max(0, base + position)
        return self._position

    def tell(self) -> int:
        """Where the next read starts."""
        return self._position

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def close(self) -> None:
        """End."""
        self.closed = True


def as_file_info(path: str, info: Info) -> pafs.FileInfo:
    """An entry, as pyarrow wants it."""
    if info.is_dir:
        return pafs.FileInfo(path, pafs.FileType.Directory, mtime=info.modified_s)
    return pafs.FileInfo(path, pafs.FileType.File, size=info.size_bytes, mtime=info.modified_s)


def open_reader(
    home: Home, key: str, path: str, entry: FileEntry | None, found: Info | None = None,
    *, step_bytes: int | None = None,
) -> ReadStream:  # fmt: skip
    """Open a file of a home.

    Args:
        home: Where it is.
        key: Its name there.
        path: Its name in errors.
        entry: What its manifest says of it, or None.
        found: What it is, where that is known; else the home is asked.
        step_bytes: What is read from its start to its end comes in steps of at most so much: who
            copies it puts away the first bytes while the next ones come.

    Raises:
        FileNotFoundError: It is no file.
        DamagedError: It has another length than its manifest says.
    """
    found = found or home.info(key)
    if found is None or found.is_dir:
        raise FileNotFoundError(path)
    checker = Checker(entry, path, found.size_bytes)
    return ReadStream(home, key, found.size_bytes, checker, step_bytes)
