"""A disk in memory that can lose what was not synced: the model for crash tests.

The bytes of a file and the entries of a directory are volatile until `sync` returned for them.
Every change of entries is one unit, kept or undone as a whole, as a journal does it: a rename is
never half done, and `sync` of either of its directories makes all of it durable. Nothing else is
ordered: a later change may survive an earlier one unless they touch the same name.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Iterator
from typing import Literal

from tune_sync.homes.store import Info
from tune_sync.layout import check_key
from tune_sync.testing.crash_disk import Change, Node, clone, commit, settle_bytes, settle_entries

CrashMode = Literal["kill", "lose", "keep", "tear"]


# How likely a change survives a power cut that tears, by seed: most faults need a disk that kept
# nearly all and lost the one thing.
TEAR_CHANCES = (0.5, 0.8, 0.95)


class CrashStore:
    """An in-memory `tune_sync.homes.store.Store` with a power switch. Threads may share it."""

    def __init__(self) -> None:
        self._root = Node(is_dir=True)
        self._pending: list[Change] = []
        self._disk_lock = threading.RLock()

    def crash(self, mode: CrashMode, seed: int = 0) -> CrashStore:
        """What may be found afterwards, as a store of its own; this one stays as it is.

        Args:
            mode: "kill": only the process died, nothing is lost (and nothing is synced by it).
                "lose": a power cut; all that was not synced is gone. "keep": a power cut; all had
                reached the disk. "tear": a power cut; a random part of it had.
            seed: For "tear".
        """
        with self._disk_lock:
            after = CrashStore()
            after._root, after._pending = clone(self._root, self._pending)
        if mode != "kill":
            chance = {"lose": 0.0, "keep": 1.0, "tear": TEAR_CHANCES[seed % 3]}[mode]
            dice = random.Random(seed)
            settle_entries(after._pending, chance, dice)
            settle_bytes(after._root, chance, dice)
            after._pending = []
        return after

    def info(self, key: str) -> Info | None:
        """See `Store.info`."""
        with self._disk_lock:
            node = self._find(key)
            return None if node is None else _info(key, node)

    def list(self, key: str) -> list[Info]:
        """See `Store.list`."""
        with self._disk_lock:
            node = self._find(key)
            entries = node.entries if node is not None else {}
            prefix = f"{key}/" if key else ""
            return [_info(prefix + name, entries[name]) for name in sorted(entries)]

    def read(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """See `Store.read`."""
        with self._disk_lock:
            data = self._file(key).data
            end = len(data) if length_bytes is None else offset_bytes + length_bytes
            return bytes(data[offset_bytes:end])

    def make_dir(self, key: str) -> None:
        """See `Store.make_dir`."""
        parts = check_key(key).split("/") if key else []
        with self._disk_lock:
            here = self._root
            for name in parts:
                found = here.entries.get(name)
                if found is None:
                    found = Node(is_dir=True)
                    self._change((here, name, found))
                elif not found.is_dir:
                    raise _os_error(errno.EEXIST, key)
                here = found

    def write_at(self, key: str, offset_bytes: int, data: bytes | memoryview) -> None:
        """See `Store.write_at`."""
        with self._disk_lock:
            parent, name = self._slot(key)
            node = parent.entries.get(name)
            if node is None:
                node = Node(is_dir=False)
                self._change((parent, name, node))
            if node.is_dir:
                raise _os_error(errno.EISDIR, key)
            node.write(offset_bytes, bytes(data))

    def link(self, source: str, target: str) -> None:
        """See `Store.link`."""
        with self._disk_lock:
            node = self._file(source)
            parent, name = self._slot(target)
            found = parent.entries.get(name)
            if found is None:
                self._change((parent, name, node))
            elif found is not node:
                raise _os_error(errno.EEXIST, target)

    def rename(self, source: str, target: str) -> None:
        """See `Store.rename`."""
        with self._disk_lock:
            from_dir, from_name = self._slot(source)
            to_dir, to_name = self._slot(target)
            node, old = from_dir.entries.get(from_name), to_dir.entries.get(to_name)
            if node is None:
                raise _os_error(errno.ENOENT, source)
            if node is old:
                return
            if old is not None and old.is_dir != node.is_dir:
                raise _os_error(errno.EISDIR if old.is_dir else errno.ENOTDIR, target)
            if old is not None and old.entries:
                raise _os_error(errno.ENOTEMPTY, target)
            if f"{target}/".startswith(f"{source}/"):
                raise _os_error(errno.EINVAL, target)
            self._change((from_dir, from_name, None), (to_dir, to_name, node))

    def remove(self, key: str) -> None:
        """See `Store.remove`."""
        with self._disk_lock:
            node = self._find(key)
            if node is None:
                return
            if node.is_dir:
                raise _os_error(errno.EISDIR, key)
            parent, name = self._slot(key)
            self._change((parent, name, None))

    def remove_tree(self, key: str) -> None:
        """See `Store.remove_tree`."""
        with self._disk_lock:
            node = self._find(key)
            if node is None:
                return
            if not node.is_dir:
                raise _os_error(errno.ENOTDIR, key)
            self._empty(node)
            if key:
                parent, name = self._slot(key)
                self._change((parent, name, None))

    def sync(self, key: str) -> None:
        """See `Store.sync`."""
        with self._disk_lock:
            self._sync_node(self._existing(key))

    def sync_tree(self, key: str) -> None:
        """See `Store.sync_tree`."""
        with self._disk_lock:
            for node in _below(self._existing(key)):
                self._sync_node(node)

    # Inside; all with the lock held

    def _find(self, key: str) -> Node | None:
        here: Node | None = self._root
        for name in check_key(key).split("/") if key else []:
            here = here.entries.get(name) if here is not None else None
        return here

    def _existing(self, key: str) -> Node:
        node = self._find(key)
        if node is None:
            raise _os_error(errno.ENOENT, key)
        return node

    def _file(self, key: str) -> Node:
        node = self._existing(key)
        if node.is_dir:
            raise _os_error(errno.EISDIR, key)
        return node

    def _slot(self, key: str) -> tuple[Node, str]:
        parent, _, name = check_key(key).rpartition("/")
        node = self._existing(parent)
        if not node.is_dir:
            raise _os_error(errno.ENOTDIR, key)
        if not name:
            raise _os_error(errno.EBUSY, key)
        return node, name

    def _change(self, *slots: tuple[Node, str, Node | None]) -> None:
        change = Change(slots)
        change.apply(lambda node: node.entries)
        self._pending.append(change)

    def _empty(self, node: Node) -> None:
        for name, child in list(node.entries.items()):
            self._empty(child)
            self._change((node, name, None))

    def _sync_node(self, node: Node) -> None:
        if node.is_dir:
            self._pending = commit(self._pending, node)
        else:
            node.sync_bytes()


def _info(key: str, node: Node) -> Info:
    return Info(key, node.is_dir, len(node.data), node.modified_s)


def _below(node: Node) -> Iterator[Node]:
    yield node
    for child in node.entries.values():
        yield from _below(child)


def _os_error(code: int, key: str) -> OSError:
    return OSError(code, os.strerror(code), key)
