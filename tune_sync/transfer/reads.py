"""What a process reads of checkpoints elsewhere: small files many at a time, all of it checked."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tune_sync.buckets.ahead import RANGE_BYTES
from tune_sync.homes.home import Home, LocalHome
from tune_sync.homes.recorded import check_listed
from tune_sync.homes.store import Info
from tune_sync.layout import Place
from tune_sync.transfer.digests import Digests, check_whole
from tune_sync.transfer.small_files import SmallFiles
from tune_sync.transfer.streams import open_reader
from tune_sync.transfer.turn import COPYING, InTurn


class Reads:
    """Of one filesystem. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._digests = Digests()
        self._small_files: SmallFiles | None = None
        self._listed: dict[str, Info] = {}

    def listed(self, home: Home, checkpoint: str, key: str, entries: Sequence[Info]) -> None:
        """All of a checkpoint, or of a directory `key` in it, was listed: to be copied.

        Raises:
            DamagedError: Files of it are missing.
        """
        self._digests.listed(home, checkpoint, entries)
        files = self._digests.files(home, checkpoint)
        there = (entry.key for entry in entries)
        check_listed(checkpoint, key, (f"{checkpoint}/{path}" for path in files), there)
        if isinstance(home, LocalHome):
            return  # nothing is gained by reading ahead
        self._small_files = SmallFiles(home, entries)
        self._listed = {entry.key: entry for entry in entries if entry.stored}

    def open_stream(self, home: Home, key: str, place: Place, path: str) -> pa.NativeFile:
        """Open a file that is read from its start to its end. See `streams.open_reader`."""
        entry = self._digests.of(home, place)
        small = self._small_files.take(key) if self._small_files else None
        if small is not None:
            return pa.BufferReader(check_whole(entry, path, small))
        # Looked at a moment ago; if it has gone since, reading it says so.
        found = self._listed.pop(key, None)
        step_bytes = RANGE_BYTES if home.in_place else None
        reader = InTurn(
            COPYING, lambda: open_reader(home, key, path, entry, found, step_bytes=step_bytes)
        )
        return pa.PythonFile(reader, mode="r")

    def open_file(self, home: Home, key: str, place: Place, path: str) -> pa.NativeFile:
        """Open a file that is read at any position. See `streams.open_reader`."""
        entry = self._digests.of(home, place)
        return pa.PythonFile(open_reader(home, key, path, entry), mode="r")
