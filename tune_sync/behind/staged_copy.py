"""What a node has staged: attempts on its own disk, as `commit` lays them out, and their marks.

A node's staging directory is laid out like an experiment directory of which only staging is used:

```
<staging>/<run>/<node>/.tune_sync/staging/<checkpoint>/<attempt>/data/…, seal.json
    writer.json   who writes
    parts.json    all parts of the checkpoint, as the driver took them
    stored.json   sealed at the destination, and perhaps published
```
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from tune_sync import layout
from tune_sync.errors import DamagedError, NotWholeError, StoreFullError
from tune_sync.homes.lease import Holder, holder_from_json
from tune_sync.homes.replacing import replace_file
from tune_sync.homes.store import Info, LocalStore
from tune_sync.manifest import FileEntry, Seal, seal_from_json, to_json
from tune_sync.process import boot

WRITER, PARTS = "writer.json", "parts.json"
STORED, SEAL = "stored.json", "seal.json"

Later = Callable[[Callable[[], None]], None]
Unlisted = Callable[[OSError], None]


def note_writer(store: LocalStore, directory: str, attempt: str, now_s: float) -> None:
    """Note in the directory of an attempt that this process writes it, at a moment of the epoch."""
    me = Holder.here(attempt, now_s).to_json().encode()
    replace_file(store, f"{directory}/{WRITER}", me, is_durable=False)


class StagedCopies:
    """Methods may be called from any thread, and process, of the node.

    Args:
        root: The staging directory of a run on this node.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = LocalStore(root)
        self.store.setting = "staging_dir"

    def stored(self, checkpoint: str, attempt: str, stored_as: str) -> None:
        """Note that an attempt is sealed at the destination."""
        self._mark(checkpoint, attempt, STORED, json.dumps({"attempt": stored_as}))

    def published(self, checkpoint: str, attempt: str, stored_as: str) -> None:
        """Note that a checkpoint is published at the destination, as an attempt that is here."""
        noted = {"attempt": stored_as, "is_published": True}
        self._mark(checkpoint, attempt, STORED, json.dumps(noted))

    def stored_as(self, checkpoint: str, attempt: str) -> str:
        """Its id there; "" if it is not."""
        return str(self._noted_of_stored(checkpoint, attempt).get("attempt", ""))

    def is_published(self, checkpoint: str, attempt: str) -> bool:
        """Whether that was noted. What is published never changes."""
        return self._noted_of_stored(checkpoint, attempt).get("is_published") is True

    def note_parts(self, checkpoint: str, attempt: str, parts: Sequence[str]) -> None:
        """Note what the driver took a checkpoint of. See `manifest.Seal.parts`."""
        self._mark(checkpoint, attempt, PARTS, json.dumps({"parts": list(parts)}))

    def parts(self, checkpoint: str, attempt: str) -> tuple[str, ...] | None:
        """What was noted; None if nothing was."""
        try:
            body = self.store.read(self._key(checkpoint, attempt, PARTS))
            return tuple(str(part) for part in json.loads(body)["parts"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def seal(self, checkpoint: str, attempt: str) -> Seal | None:
        """What an attempt holds; None if it is not sealed. Raises DamagedError.

        A host that went down may have lost any byte of what was not confirmed.
        """
        key = layout.seal_key(checkpoint, attempt)
        try:
            seal = seal_from_json(self.store.read(key), key)
        except FileNotFoundError:
            return None
        return seal if seal.boot in (None, boot()) else None

    def seal_for_now(self, checkpoint: str, seal: Seal) -> None:
        """Note what an attempt holds. It survives this process on return, not yet this host.

        Raises:
            NotWholeError: A file is not there as it was written, or taken.
        """
        data = layout.staged_key(checkpoint, seal.attempt)
        if self.store.info(data) is None:
            raise NotWholeError(f"attempt {seal.attempt} at {checkpoint} is over; report it again")
        for directory in seal.directories:
            self.store.make_dir(f"{data}/{directory}")
        changed = self.first_changed(checkpoint, seal)
        if changed:
            raise NotWholeError(f"{changed}; report the checkpoint again")
        body = to_json(replace(seal, boot=boot())).decode()
        self._mark(checkpoint, seal.attempt, SEAL, body)

    def take_back(self, checkpoint: str, attempt: str) -> None:
        """What was sealed is not what it was: it is no checkpoint any more."""
        self.store.remove(layout.seal_key(checkpoint, attempt))

    def first_changed(self, checkpoint: str, seal: Seal) -> str:
        """Says which file is not as it was when it was sealed; "" if all are.

        Raises:
            FileNotFoundError: One is not there.
        """
        data = layout.staged_key(checkpoint, seal.attempt)
        for file in seal.files:
            found = self.store.path(f"{data}/{file.path}").stat()
            if file != _as_found(file, found):
                return f"{file.path} of {checkpoint} was changed after it was reported"
        return ""

    def is_sealed(self, checkpoint: str, attempt: str) -> bool:
        """Whether the seal of an attempt is there."""
        return self.store.info(layout.seal_key(checkpoint, attempt)) is not None

    def is_there(self, checkpoint: str, seal: Seal) -> bool:
        """Whether all files of a sealed attempt are there."""
        data = layout.staged_key(checkpoint, seal.attempt)
        keys = [f"{data}/{file.path}" for file in seal.files]
        is_sealed = self.is_sealed(checkpoint, seal.attempt)
        return is_sealed and all(self.store.info(key) is not None for key in keys)

    def attempts(self, unlisted: Unlisted | None = None) -> Iterator[tuple[str, str]]:
        """All `(checkpoint, attempt)`.

        Args:
            unlisted: Is told why a directory cannot be listed; the others are all the same.
                Without it that is raised.
        """
        todo = [layout.STAGING_DIR]
        while todo:
            for entry in self._entries(todo.pop(), unlisted):
                key = entry.key.removeprefix(layout.STAGING_DIR + "/")
                if layout.is_checkpoint_name(key.rsplit("/", 1)[-1]):
                    for attempt in self._entries(entry.key, unlisted):
                        yield key, attempt.key.rsplit("/", 1)[-1]
                elif entry.is_dir:
                    todo.append(entry.key)

    def _entries(self, key: str, unlisted: Unlisted | None) -> Iterable[Info]:
        try:
            return self.store.list(key)
        except OSError as error:
            if unlisted is None:
                raise
            unlisted(error)
            return ()

    def is_abandoned(self, checkpoint: str, attempt: str) -> bool:
        """Whether an attempt is not sealed and never will be: its writer has ended."""
        writer = None
        with suppress(FileNotFoundError):
            writer = holder_from_json(self.store.read(self._key(checkpoint, attempt, WRITER)))
        # No attempt begins without one: else a power cut has taken it.
        if writer is not None and not writer.is_surely_dead and not _is_before_boot(writer):
            return False
        with suppress(DamagedError):
            # Looked for last: it may have been sealed just before its writer ended.
            return self.seal(checkpoint, attempt) is None
        return False

    def of(self, checkpoint: str) -> list[str]:
        """All attempts of a checkpoint."""
        found = self.store.list(f"{layout.STAGING_DIR}/{checkpoint}")
        return [entry.key.rsplit("/", 1)[-1] for entry in found]

    def newest_whole(self, checkpoint: str) -> tuple[float, str] | None:
        """When a whole copy of a checkpoint was sealed, and its attempt; None if there is none.

        Of several, the one that was sealed last: those before it were given up.
        """
        found: list[tuple[float, str]] = []
        for attempt in self.of(checkpoint):
            with suppress(DamagedError):
                seal = self.seal(checkpoint, attempt)
                if seal is not None and self._is_all(checkpoint, seal):
                    found.append((seal.sealed_s, attempt))
        return max(found, default=None)

    @contextmanager
    def held(self, checkpoint: str, attempt: str) -> Iterator[bool]:
        """Nobody on this node removes a sealed attempt meanwhile; False if it has just gone."""
        with self._locked(checkpoint, attempt, fcntl.LOCK_SH) as is_locked:
            yield is_locked and self.store.info(layout.seal_key(checkpoint, attempt)) is not None

    def remove(self, checkpoint: str, attempt: str, later: Later | None = None) -> bool:
        """Remove an attempt, and the directories above it that are empty then.

        Args:
            checkpoint: Its checkpoint.
            attempt: Its id.
            later: Calls what it is given, once: then its bytes go. Without, they have on return.

        Returns:
            Whether it has gone: not while it is `held`.
        """
        with self._locked(checkpoint, attempt, fcntl.LOCK_EX) as is_locked:
            if not is_locked:
                return False
            trash = self._put_away(checkpoint, attempt)
        if later is None or not trash.startswith(layout.TRASH_DIR):
            self.store.remove_tree(trash)
        else:
            later(lambda: self._clear(trash))
        with suppress(OSError):
            os.rmdir(self.store.path(f"{layout.STAGING_DIR}/{checkpoint}"))
        return True

    def remove_all(self) -> None:
        """Remove the directory itself. What says whose it is goes last: a crash may come before."""
        for top in ("", layout.INTERNAL_DIR):
            with suppress(OSError):  # it has gone; or this disk is broken
                for entry in self.store.list(top):
                    if entry.is_dir and entry.key != layout.INTERNAL_DIR:
                        shutil.rmtree(self.store.path(entry.key), ignore_errors=True)
                self.store.sync(top)
        shutil.rmtree(self.root, ignore_errors=True)

    def _clear(self, trash: str) -> None:
        with suppress(OSError):  # whoever needs the room finds it taken, and says so
            self.store.remove_tree(trash)

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

    def _put_away(self, checkpoint: str, attempt: str) -> str:
        """Take it out of sight; returns what is to be removed."""
        trash = f"{layout.TRASH_DIR}/{attempt}"
        try:
            self.store.make_dir(layout.TRASH_DIR)
            with suppress(FileNotFoundError):
                self.store.rename(layout.attempt_key(checkpoint, attempt), trash)
        except StoreFullError:  # a move needs room too, and there is none until this has gone
            return layout.attempt_key(checkpoint, attempt)
        return trash

    @contextmanager
    def _locked(self, checkpoint: str, attempt: str, how: int) -> Iterator[bool]:
        """Whether nobody has an attempt in the way of this; what is not there nobody has."""
        try:
            path = self.store.path(layout.attempt_key(checkpoint, attempt))
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield True
            return
        try:
            yield _is_locked(descriptor, how)
        finally:
            os.close(descriptor)

    def _is_all(self, checkpoint: str, seal: Seal) -> bool:
        """Whether a part is the whole checkpoint, by itself or by what the driver has told."""
        is_all = seal.is_all or (self.parts(checkpoint, seal.attempt) or seal.parts) == (seal.name,)
        return is_all and self._is_unchanged(checkpoint, seal)

    def _is_unchanged(self, checkpoint: str, seal: Seal) -> bool:
        try:
            return seal.is_confirmed or not self.first_changed(checkpoint, seal)
        except FileNotFoundError:
            return False

    def _noted_of_stored(self, checkpoint: str, attempt: str) -> dict[str, object]:
        try:
            noted = json.loads(self.store.read(self._key(checkpoint, attempt, STORED)))
        except (FileNotFoundError, ValueError):
            return {}
        return noted if isinstance(noted, dict) else {}

    def _mark(self, checkpoint: str, attempt: str, mark: str, body: str) -> None:
        key = self._key(checkpoint, attempt, mark)
        replace_file(self.store, key, body.encode(), is_durable=False)

    def _key(self, checkpoint: str, attempt: str, mark: str) -> str:
        return f"{layout.attempt_key(checkpoint, attempt)}/{mark}"


def _as_found(file: FileEntry, found: os.stat_result) -> FileEntry:
    modified_ns = found.st_mtime_ns if file.modified_ns else 0
    return replace(file, size_bytes=found.st_size, modified_ns=modified_ns)


def _is_locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nothing would ever be removed
        return True
    return True


def _is_before_boot(writer: Holder) -> bool:
    """Whether it ran here before this boot. Other hosts, which may share this, have their own."""
    is_of_now = not writer.machine or writer.machine.startswith(f"{boot()}/")
    return not is_of_now and writer.host == socket.gethostname()
