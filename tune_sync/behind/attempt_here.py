"""What this node has of an attempt that is being written, and may have to go elsewhere. No I/O."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tune_sync import layout
from tune_sync.homes.home import Piece

# Small files travel together, up to this size.
BATCH_BYTES = 16 << 20
# Files up to this size do.
SMALL_BYTES = 1 << 20


@dataclass(slots=True)
class FileHere:
    """What is here of one file: all bytes before `size_bytes`.

    Attributes:
        digest: Once it was read here; before that "", as it is of most.
    """

    size_bytes: int = 0
    expected_bytes: int | None = None
    is_batched: bool = False
    is_finished: bool = False
    digest: str = ""


@dataclass(slots=True)
class AttemptHere:
    """An attempt that was begun here.

    Attributes:
        checkpoint: Its checkpoint.
        name: Its id.
        there: Its id at the destination, once it has spilled.
        is_sealed: It was sealed here, and told of: what is here stays.
        same_as: Further name of a file -> the file, wherever it is.
    """

    checkpoint: str
    name: str
    there: str = ""
    is_sealed: bool = False
    files: dict[str, FileHere] = field(default_factory=dict)
    links: list[tuple[str, str]] = field(default_factory=list)
    same_as: dict[str, str] = field(default_factory=dict)
    writers_count: int = 0
    is_moving: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def file(self, key: str) -> FileHere:
        """What is here of a file."""
        return self.files.setdefault(key, FileHere())

    def took(self, key: str, size_bytes: int) -> None:
        """A file of so many bytes has come here as a whole."""
        is_small = size_bytes <= SMALL_BYTES
        self.files[key] = FileHere(size_bytes, size_bytes, is_batched=is_small, is_finished=True)

    def digest(self, key: str) -> str:
        """Of a file that has been sent from here to the destination; "" of others."""
        file = self.files.get(self.same_as.get(key, key))
        return file.digest if file else ""

    def has_spilled(self) -> bool:
        """Whether it is at the destination."""
        return bool(self.there)

    def key_there(self, key: str) -> str:
        """The same key at the destination."""
        here = layout.staged_key(self.checkpoint, self.name)
        return layout.staged_key(self.checkpoint, self.there) + key[len(here) :]

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Nothing is moved meanwhile."""
        with self.changed:
            self.changed.wait_for(lambda: not self.is_moving)
            self.writers_count += 1
        try:
            yield
        finally:
            with self.changed:
                self.writers_count -= 1
                self.changed.notify_all()

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Nothing is written meanwhile."""
        with self.changed:
            self.changed.wait_for(lambda: not self.is_moving)
            self.is_moving = True
            self.changed.wait_for(lambda: not self.writers_count)
        try:
            yield
        finally:
            with self.changed:
                self.is_moving = False
                self.changed.notify_all()

    def batches(self) -> Iterator[list[Piece]]:
        """Small files that were written together, in batches of this node's keys."""
        pieces: list[Piece] = []
        at_bytes = 0
        for key, file in self.files.items():
            if file.is_batched:
                pieces.append(Piece(key, at_bytes, file.size_bytes))
                at_bytes += file.size_bytes
            if at_bytes >= BATCH_BYTES:
                yield pieces
                pieces, at_bytes = [], 0
        if pieces:
            yield pieces
