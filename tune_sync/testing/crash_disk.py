"""The parts of the disk that `CrashStore` models: nodes, changes of entries, and their loss."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

# A write that a power cut tears keeps or loses units of this size. Real ones are 512 or 4,096
# bytes; a small one tears the small files of tests too.
SECTOR_BYTES = 8


@dataclass(eq=False, slots=True)
class Node:
    """A file or a directory: what a process sees, and what the disk holds.

    Attributes:
        is_dir: A directory, else a file.
        data: Bytes of a file as processes see them.
        durable_data: Its bytes at the last `sync`.
        writes: `(offset, bytes)` since then.
        entries: Names in a directory as processes see them.
        durable_entries: Names that survive a power cut.
        modified_s: Seconds since the epoch.
    """

    is_dir: bool
    data: bytearray = field(default_factory=bytearray)
    durable_data: bytes = b""
    writes: list[tuple[int, bytes]] = field(default_factory=list)
    entries: dict[str, Node] = field(default_factory=dict)
    durable_entries: dict[str, Node] = field(default_factory=dict)
    modified_s: float = field(default_factory=time.time)

    def write(self, offset_bytes: int, data: bytes) -> None:
        """Put bytes into a file, volatile."""
        _put(self.data, offset_bytes, data)
        self.writes.append((offset_bytes, data))
        self.modified_s = time.time()

    def sync_bytes(self) -> None:
        """Make the bytes of a file durable."""
        self.durable_data = bytes(self.data)
        self.writes.clear()


Slot = tuple[Node, str, Node | None]


@dataclass(eq=False, slots=True)
class Change:
    """One change of entries, kept or undone as a whole: `(directory, name, what is there now)`."""

    slots: tuple[Slot, ...]

    def apply(self, entries_of: Callable[[Node], dict[str, Node]]) -> None:
        """Make the change in one of the two views of a directory."""
        for directory, name, node in self.slots:
            if node is None:
                entries_of(directory).pop(name, None)
            else:
                entries_of(directory)[name] = node

    def touches(self, directory: Node) -> bool:
        """Whether it changes an entry of `directory`."""
        return any(slot[0] is directory for slot in self.slots)

    def names(self) -> set[tuple[int, str]]:
        """The names it changes. Changes of one name reach the disk in their order."""
        return {(id(directory), name) for directory, name, _ in self.slots}


def clone(root: Node, pending: list[Change]) -> tuple[Node, list[Change]]:
    """A copy of a disk with its volatile part."""
    copies: dict[int, Node] = {}

    def copy(node: Node) -> Node:
        if id(node) in copies:
            return copies[id(node)]
        new = copies[id(node)] = Node(
            node.is_dir, bytearray(node.data), node.durable_data, list(node.writes),
            modified_s=node.modified_s,
        )  # fmt: skip
        new.entries = {name: copy(child) for name, child in node.entries.items()}
        new.durable_entries = {name: copy(child) for name, child in node.durable_entries.items()}
        return new

    def copy_change(change: Change) -> Change:
        slots = ((copy(d), name, None if n is None else copy(n)) for d, name, n in change.slots)
        return Change(tuple(slots))

    return copy(root), [copy_change(change) for change in pending]


def commit(pending: list[Change], directory: Node) -> list[Change]:
    """Make the changes of `directory` durable, and what they build on; returns the others."""
    kept: set[int] = set()
    wanted: set[tuple[int, str]] = set()
    for change in reversed(pending):
        if change.touches(directory) or change.names() & wanted:
            kept.add(id(change))
            wanted |= change.names()
    left = []
    for change in pending:
        if id(change) in kept:
            change.apply(lambda node: node.durable_entries)
        else:
            left.append(change)
    return left


def settle_entries(pending: list[Change], keep_chance: float, dice: random.Random) -> None:
    """Let each change reach the disk or not; one whose base did not, does not either."""
    lost: set[tuple[int, str]] = set()
    for change in pending:
        if dice.random() < keep_chance and not change.names() & lost:
            change.apply(lambda node: node.durable_entries)
        else:
            lost |= change.names()


def settle_bytes(root: Node, keep_chance: float, dice: random.Random) -> None:
    """Make what the disk holds what processes see: the state after a power cut."""
    for node in _durable_nodes(root):
        if node.is_dir:
            node.entries = dict(node.durable_entries)
            continue
        data = bytearray(node.durable_data)
        for offset_bytes, written in node.writes:
            for start in range(0, len(written), SECTOR_BYTES):
                if dice.random() < keep_chance:
                    _put(data, offset_bytes + start, written[start : start + SECTOR_BYTES])
        node.data, node.durable_data = data, bytes(data)
        node.writes.clear()


def _durable_nodes(root: Node) -> Iterator[Node]:
    seen: set[int] = set()
    todo = [root]
    while todo:
        node = todo.pop()
        if id(node) not in seen:
            seen.add(id(node))
            todo.extend(node.durable_entries.values())
            yield node


def _put(data: bytearray, offset_bytes: int, new: bytes) -> None:
    if len(data) < offset_bytes:
        data.extend(bytes(offset_bytes - len(data)))
    data[offset_bytes : offset_bytes + len(new)] = new
