"""What a node has staged: attempts on its own disk, as `commit` lays them out, and their marks.

A node's staging directory is laid out like an experiment directory of which only staging is used:

```
<staging>/<run>/<node>/.tune_sync/staging/<checkpoint>/<attempt>/data/…, seal.json
    writer.json   who writes
    stored.json   sealed at the destination
```
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tune_sync import layout
from tune_sync.errors import DamagedError, StoreFullError
from tune_sync.homes.lease import Holder, holder_from_json
from tune_sync.homes.store import Info, LocalStore
from tune_sync.manifest import Seal, seal_from_json

WRITER, STORED = "writer.json", "stored.json"


class StagedCopies:
    """Methods may be called from any thread, and process, of the node.

    Args:
        root: The staging directory of a run on this node.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = LocalStore(root)

    def begun(self, checkpoint: str, attempt: str, now_s: float) -> None:
        """Note who writes an attempt."""
        me = Holder.here(attempt, now_s)
        self._mark(checkpoint, attempt, WRITER, me.to_json())

    def stored(self, checkpoint: str, attempt: str, stored_as: str) -> None:
        """Note that an attempt is sealed at the destination."""
        self._mark(checkpoint, attempt, STORED, json.dumps({"attempt": stored_as}))

    def stored_as(self, checkpoint: str, attempt: str) -> str:
        """Its id there; "" if it is not."""
        try:
            body = self.store.read(self._key(checkpoint, attempt, STORED))
            return str(json.loads(body)["attempt"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return ""

    def seal(self, checkpoint: str, attempt: str) -> Seal | None:
        """What an attempt holds; None if it is not sealed. Raises DamagedError."""
        key = layout.seal_key(checkpoint, attempt)
        try:
            return seal_from_json(self.store.read(key), key)
        except FileNotFoundError:
            return None

    def attempts(self) -> Iterator[tuple[str, str]]:
        """All `(checkpoint, attempt)`."""
        todo = [layout.STAGING_DIR]
        while todo:
            for entry in self.store.list(todo.pop()):
                key = entry.key.removeprefix(layout.STAGING_DIR + "/")
                if layout.is_checkpoint_name(key.rsplit("/", 1)[-1]):
                    for attempt in self.store.list(entry.key):
                        yield key, attempt.key.rsplit("/", 1)[-1]
                elif entry.is_dir:
                    todo.append(entry.key)

    def is_abandoned(self, checkpoint: str, attempt: str) -> bool:
        """Whether an attempt that is not sealed never will be: its writer has ended."""
        try:
            writer = holder_from_json(self.store.read(self._key(checkpoint, attempt, WRITER)))
        except FileNotFoundError:
            return False
        return writer is not None and writer.is_surely_dead

    def whole(self, checkpoint: str) -> str | None:
        """Where a whole copy of a checkpoint lies, relative to the root; None if there is none.

        Of several, the one that was sealed last: those before it were given up.
        """
        found: list[tuple[float, str]] = []
        for entry in self.store.list(f"{layout.STAGING_DIR}/{checkpoint}"):
            attempt = entry.key.rsplit("/", 1)[-1]
            with suppress(DamagedError):
                seal = self.seal(checkpoint, attempt)
                if seal is not None and seal.is_all:
                    found.append((seal.sealed_s, attempt))
        return layout.staged_key(checkpoint, max(found)[1]) if found else None

    def remove(self, checkpoint: str, attempt: str) -> None:
        """Remove an attempt, and the directories above it that are empty then."""
        trash = f"{layout.TRASH_DIR}/{attempt}"
        try:
            self.store.make_dir(layout.TRASH_DIR)
            with suppress(FileNotFoundError):
                self.store.rename(layout.attempt_key(checkpoint, attempt), trash)
            self.store.remove_tree(trash)
        except StoreFullError:  # a move needs room too, and there is none until this has gone
            self.store.remove_tree(layout.attempt_key(checkpoint, attempt))
        with suppress(OSError):
            os.rmdir(self.store.path(f"{layout.STAGING_DIR}/{checkpoint}"))

    def list(self, where: str, checkpoint: str, key: str, recursive: bool) -> list[Info]:
        """Entries below `key`, of the copy of a checkpoint that lies at `where`."""
        inner = layout.below(checkpoint, key) or ""
        found = []
        for entry in self.store.list(f"{where}/{inner}".rstrip("/")):
            name = checkpoint + entry.key[len(where) :]
            found.append(Info(name, entry.is_dir, entry.size_bytes, entry.modified_s))
            if recursive and entry.is_dir:
                found.extend(self.list(where, checkpoint, name, True))
        return found

    def _mark(self, checkpoint: str, attempt: str, mark: str, body: str) -> None:
        key = self._key(checkpoint, attempt, mark)
        self.store.write_at(f"{key}.new", 0, body.encode())
        self.store.rename(f"{key}.new", key)

    def _key(self, checkpoint: str, attempt: str, mark: str) -> str:
        return f"{layout.attempt_key(checkpoint, attempt)}/{mark}"
