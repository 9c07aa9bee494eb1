"""`NodeDisk`: attempts on this node's own disk. No report waits for the disk: an agent does, later.

```
<staging>/<run>/<node>/.tune_sync/making/<process>/…   directories to be filled and handed over;
                                                       attempts, before they have their place
                                  staging/…            attempts
```

A file is handed over by a rename: from then on nobody finds it by its old name. Whoever still has
it open for writing could change it all the same: then it is not taken.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from contextlib import suppress
from pathlib import Path

from tune_sync import guard, layout
from tune_sync.behind.file_calls import copy_file, is_being_written
from tune_sync.behind.staged_copy import StagedCopies, note_writer
from tune_sync.errors import StoreFullError
from tune_sync.homes.home import LocalHome
from tune_sync.manifest import FileEntry, Seal
from tune_sync.process import is_orphan, owned_name

MAKING_DIR = f"{layout.INTERNAL_DIR}/making"
# In memory, where something is noted beside it.
MADE_NAME = "made"


class NodeDisk(LocalHome):
    """The verbs of `Home` that concern attempts. Any process of the node may call them.

    Args:
        root: See `LocalHome`.
        owner: See `LocalHome`.
        checkpoint_depth: See `LocalHome`.
    """

    def __init__(self, root: Path, owner: str = "", checkpoint_depth: int = 1) -> None:
        super().__init__(root, owner, checkpoint_depth)
        self.store.is_hasty = False  # a report would wait for the disk after all
        self.store.setting = "staging_dir"

    def seal(self, checkpoint: str, seal: Seal) -> None:
        """See `Home.seal`. On return it survives this process; see `confirm`."""
        guard.attempt(seal.attempt)
        StagedCopies(self.root).seal_for_now(checkpoint, seal)

    def make_directory(self, size_bytes: int = 0) -> Path:
        """See `Home.make_directory`. It goes with this process, at the latest."""
        key = f"{MAKING_DIR}/{owned_name()}"
        self.store.make_dir(key)
        return self.store.path(key)

    def take(self, key: str, source: Path, *, is_given: bool) -> FileEntry | None:
        """See `Home.take`. None if there is no room, too."""
        try:
            self._make_parent(guard.staged(key))
            if not (self._is_moved(source, key) if is_given else self._is_copied(source, key)):
                return None
        except StoreFullError:
            return None
        found = self.store.path(key).stat()
        return FileEntry(key, found.st_size, "", found.st_mtime_ns)

    def making_bytes(self) -> int:
        """What is in all directories that are being filled."""
        return bytes_below(self.store.path(MAKING_DIR))

    def sweep_making(self) -> None:
        """Remove directories of processes that have ended, as far as they can be."""
        for entry in self.store.list(MAKING_DIR):
            if is_orphan(entry.key):
                with suppress(OSError):  # all StoreErrors of a disk are
                    self.store.remove_tree(entry.key)

    def _begin(self, checkpoint: str, attempt: str) -> str:
        """An attempt is never seen without its writer: if that is killed, it is known as left."""
        guard.checkpoint(checkpoint, self._depth)
        attempt, made = attempt or uuid.uuid4().hex, f"{MAKING_DIR}/{owned_name()}"
        place = layout.attempt_key(checkpoint, attempt)
        try:
            self.store.make_dir(f"{made}/data")
            note_writer(self.store, made, attempt, time.time())
            try:
                self._move(made, place)
            except FileNotFoundError:  # the agent removed the last attempt beside it just then
                self._move(made, place)
        except BaseException:
            with suppress(OSError):
                self.store.remove_tree(made)
            raise
        return attempt

    def _move(self, made: str, place: str) -> None:
        self.store.make_dir(layout.parent(place))
        self.store.rename(made, place)

    def _is_moved(self, source: Path, key: str) -> bool:
        inside = layout.below(os.path.realpath(self.store.path(MAKING_DIR)), str(source))
        if not inside:
            return False
        self.store.rename(f"{MAKING_DIR}/{inside}", key)
        if is_being_written(self.store.path(key)):  # it has to be copied as it is now
            self.store.rename(key, f"{MAKING_DIR}/{inside}")
            return False
        return True

    def _is_copied(self, source: Path, key: str) -> bool:
        copy_file(source, self.store.path(key))
        return True


def remove_made(directory: Path) -> None:
    """Remove what `make_directory` made, as far as it is there."""
    shutil.rmtree(directory, ignore_errors=True)
    if directory.name == MADE_NAME:  # what is noted beside it
        shutil.rmtree(directory.parent, ignore_errors=True)


def bytes_below(top: Path) -> int:
    """What all files below a directory take; 0 if it is not there."""
    return sum(_size_of(Path(base, name)) for base, _, names in os.walk(top) for name in names)


def _size_of(file: Path) -> int:
    try:
        return file.lstat().st_size
    except OSError:  # it has just been handed over
        return 0
