"""Digests of published files, as their manifests list them: to be compared with what is read."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import xxhash

from tune_sync import layout
from tune_sync.errors import DamagedError
from tune_sync.homes.home import Home
from tune_sync.homes.recorded import ways_out
from tune_sync.homes.store import Info
from tune_sync.layout import Place
from tune_sync.manifest import FileEntry, Manifest, manifest_of

# A process reads one checkpoint, and perhaps another one soon; each has a list of its files.
CHECKPOINTS_KEPT = 4


class Digests:
    """What one process knows of them. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._files: dict[tuple[int, str], Mapping[str, FileEntry]] = {}
        self._files_lock = threading.Lock()

    def listed(self, home: Home, checkpoint: str, entries: Sequence[Info]) -> None:
        """All of a checkpoint was listed: what was read of its manifest before may be old."""
        known = {e.stored.path: e.stored for e in entries if e.stored}
        with self._files_lock:
            self._files = {k: files for k, files in self._files.items() if k[1] != checkpoint}
            if known:
                self._files[id(home), checkpoint] = known
                self._forget_some()

    def of(self, home: Home, place: Place) -> FileEntry | None:
        """What a file of a checkpoint has to be; None if nothing tells.

        Raises:
            DamagedError: The manifest cannot be read.
        """
        if not place.checkpoint or not place.inner:
            return None
        return self.files(home, place.checkpoint).get(place.inner)

    def files(self, home: Home, checkpoint: str) -> Mapping[str, FileEntry]:
        """What a checkpoint has, by its manifest; nothing if there is none.

        Raises:
            DamagedError: The manifest cannot be read.
        """
        name = (id(home), checkpoint)
        files = self._files.get(name)
        if files is None:
            manifest = read_manifest(home, checkpoint)
            files = {file.path: file for file in manifest.files} if manifest else {}
            with self._files_lock:
                self._files[name] = files
                self._forget_some()
        return files

    def _forget_some(self) -> None:
        """With `_files_lock`."""
        while len(self._files) > CHECKPOINTS_KEPT:
            del self._files[next(iter(self._files))]


class Checker:
    """Compares a file with its entry in a manifest, as it is read from its start to its end.

    Args:
        entry: From the manifest; None checks nothing.
        path: Names the file in errors.
        size_bytes: Its length as it is.

    Raises:
        DamagedError: It has another length.
    """

    def __init__(self, entry: FileEntry | None, path: str, size_bytes: int) -> None:
        self._entry = entry
        self._path = path
        self._digest = xxhash.xxh3_128()
        self._seen_bytes = 0
        if entry is not None and size_bytes != entry.size_bytes:
            raise self._damaged(f"{size_bytes} bytes are there, {entry.size_bytes} were stored")
        self._check()

    def saw(self, position: int, data: bytes | memoryview) -> None:
        """Take bytes that were read at `position`. What is not read in a row is not checked.

        Raises:
            DamagedError: They were the last, and all of them are not what was stored. Or there are
                none any more, before its end.
        """
        if self._entry is not None and not len(data) and position < self._entry.size_bytes:
            stored = f"{self._entry.size_bytes} were stored"
            raise self._damaged(f"it ends after {position} bytes, {stored}")
        if self._entry is None or position != self._seen_bytes or not len(data):
            return
        self._digest.update(data)
        self._seen_bytes += len(data)
        self._check()

    def _check(self) -> None:
        if self._entry is None or self._seen_bytes < self._entry.size_bytes:
            return
        if self._digest.hexdigest() != self._entry.digest:
            raise self._damaged("its bytes are not those that were stored")

    def _damaged(self, what: str) -> DamagedError:
        checkpoint = self._path.removesuffix(f"/{self._entry.path if self._entry else ''}")
        return DamagedError(f"{self._path} is damaged: {what}; {ways_out(checkpoint)}")


def check_whole(entry: FileEntry | None, path: str, data: bytes) -> bytes:
    """Return all bytes of a file, compared with its entry. Raises as `Checker` does."""
    Checker(entry, path, len(data)).saw(0, data)
    return data


def read_manifest(home: Home, checkpoint: str) -> Manifest | None:
    """The manifest of a checkpoint, at home; None if there is none.

    Raises:
        DamagedError: It cannot be read.
    """
    key = layout.manifest_key(checkpoint)
    found = home.info(key)
    if found is None or found.is_dir:
        return None
    data = bytes(home.read(key, 0, found.size_bytes))
    try:
        return manifest_of(checkpoint, data, key)
    except DamagedError as error:
        raise DamagedError(f"{error}; {ways_out(checkpoint)}") from error
