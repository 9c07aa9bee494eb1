"""A file of the driver that is written to the destination later, perhaps more than once."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable

import xxhash

from tune_sync.homes.home import Home
from tune_sync.transfer.chunks import CHUNK_BYTES
from tune_sync.transfer.streams import FileStream

# More than this of one file waits in a local file, not in memory.
HELD_BYTES = 1 << 20

Edit = Callable[[bytes], bytes]


class HeldFile:
    """A file object that keeps what is written into it.

    Args:
        on_close: Called once, when the file is complete.
    """

    def __init__(self, on_close: Callable[[HeldFile], None]) -> None:
        # Ends with this object: whoever holds it may send it at any time.
        self._file = tempfile.SpooledTemporaryFile(HELD_BYTES)  # noqa: SIM115
        self._hash = xxhash.xxh3_128()
        self._on_close = on_close
        self.closed = False

    @property
    def digest(self) -> str:
        """xxh3_128 of all bytes so far."""
        return self._hash.hexdigest()

    @property
    def body(self) -> bytes:
        """All bytes so far."""
        self._file.seek(0)
        return self._file.read()

    def write(self, data: bytes | memoryview) -> int:
        """Take bytes."""
        self._hash.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        """Nothing: the file is sent later."""

    def close(self) -> None:
        """The file is complete. May be called twice."""
        if not self.closed:
            self.closed = True
            self._on_close(self)

    def send(self, home: Home, key: str, durable: bool, edit: Edit | None = None) -> None:
        """Put it, or what `edit` makes of it, in its place. For one thread; also after an error."""
        source = io.BytesIO(edit(self.body)) if edit else self._file
        source.seek(0)
        stream = FileStream(home, key, lambda stream: None)
        while data := source.read(CHUNK_BYTES):
            stream.write(data)
        stream.commit(durable, unless=None)
