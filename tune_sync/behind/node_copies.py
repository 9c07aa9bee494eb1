"""What a node has staged of a run: in shared memory, if that is used, and on its disk."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tune_sync import layout
from tune_sync.behind.staged_copy import StagedCopies, Unlisted
from tune_sync.errors import NotWholeError
from tune_sync.homes.store import Info
from tune_sync.manifest import Manifest, Seal


class Copy(Protocol):
    """A whole copy of a checkpoint. One that is elsewhere raises FileNotFoundError once it is gone.

    Its methods are those of `Home`.
    """

    def info(self, key: str) -> Info | None:
        """See `Home.info`."""

    def list(self, key: str, recursive: bool) -> builtins.list[Info]:
        """See `Home.list`."""

    def read(
        self, key: str, offset_bytes: int = 0, length_bytes: int | None = None
    ) -> bytes | memoryview:
        """See `Home.read`; without a length, to the end."""


class FarCopies(Protocol):
    """Copies that the home node has. See `agents.far_copies`."""

    def whole(self, checkpoint: str) -> Copy | None:
        """A whole copy; None if there is none, or its node does not answer."""


@dataclass(frozen=True, slots=True)
class CopyHere:
    """A whole copy of a checkpoint on this node.

    Attributes:
        copies: What it is one of.
        checkpoint: Its key.
        attempt: Its id.
    """

    copies: StagedCopies
    checkpoint: str
    attempt: str

    def info(self, key: str) -> Info | None:
        """See `Home.info`. Raises as `read` does."""
        found = self.copies.store.info(self._inside(key))
        if found is None:
            self.check()
        return found and Info(key, found.is_dir, found.size_bytes, found.modified_s)

    def list(self, key: str, recursive: bool) -> builtins.list[Info]:
        """See `Home.list`. Raises as `read` does."""
        where = layout.staged_key(self.checkpoint, self.attempt)
        found = self.copies.list(where, self.checkpoint, key, recursive)
        self.check()  # it is put away as a whole: if it is there still, all of it was
        return found

    def read(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """See `Home.read`. Raises FileNotFoundError once it has gone from this node."""
        return self.copies.store.read(self._inside(key), offset_bytes, length_bytes)

    def is_of(self, manifest: Manifest) -> bool:
        """Whether it is of what is stored; False too if its digests are not known."""
        seal = self.copies.seal(self.checkpoint, self.attempt)
        return seal is not None and seal.files == manifest.files

    def staged_as(self) -> str:
        """The attempt that this is a copy of; "" if it is none of a staged one."""
        seal = self.copies.seal(self.checkpoint, self.attempt)
        return (seal.staged_as if seal is not None else None) or ""

    def is_published(self) -> bool:
        """See `StagedCopies.is_published`."""
        return self.copies.is_published(self.checkpoint, self.attempt)

    @contextmanager
    def held(self) -> Iterator[Path | None]:
        """Its directory, which stays meanwhile; None if it has just gone."""
        with self.copies.held(self.checkpoint, self.attempt) as is_held:
            where = layout.staged_key(self.checkpoint, self.attempt)
            yield self.copies.store.path(where) if is_held else None

    def path(self, key: str) -> Path:
        """Where a file of it is."""
        return self.copies.store.path(self._inside(key))

    def check(self) -> None:
        """Raise FileNotFoundError if it has gone."""
        if self.copies.seal(self.checkpoint, self.attempt) is None:
            raise FileNotFoundError(f"{self.checkpoint} has just gone from this node")

    def _inside(self, key: str) -> str:
        where = layout.staged_key(self.checkpoint, self.attempt)
        return where + key[len(self.checkpoint) :]


class Brought(Protocol):
    """Copies of stored checkpoints on this node. See `agents.shared_reads`."""

    def whole(self, checkpoint: str) -> CopyHere | None:
        """Bring one; None if it is to be read where it is stored."""

    def here(self, checkpoint: str) -> CopyHere | None:
        """One that was brought of what is not stored yet, if it is here still."""


class NodeCopies:
    """Methods may be called from any thread, and process, of the node.

    Args:
        roots: The run's staging directories on this node.
    """

    def __init__(self, *roots: Path) -> None:
        self.roots = tuple(StagedCopies(root) for root in roots)

    def whole(self, checkpoint: str) -> CopyHere | None:
        """A whole copy of a checkpoint: of several, the one that was sealed last."""
        found = [
            (*newest, copies)
            for copies in self.roots
            if (newest := copies.newest_whole(checkpoint))
        ]
        if not found:
            return None
        _, attempt, copies = max(found, key=lambda one: one[0])
        return CopyHere(copies, checkpoint, attempt)

    def sealed(self, checkpoint: str, attempt: str) -> tuple[StagedCopies, Seal]:
        """Where a sealed attempt is, and what it holds.

        Raises:
            NotWholeError: It is not here, or not sealed.
        """
        for copies in self.roots:
            seal = copies.seal(checkpoint, attempt)
            if seal is not None:
                return copies, seal
        raise NotWholeError(f"attempt {attempt} at {checkpoint} is over; report it again")

    def of(self, checkpoint: str) -> Iterator[tuple[StagedCopies, str]]:
        """All attempts of a checkpoint: where, and its id."""
        for copies in self.roots:
            for attempt in copies.of(checkpoint):
                yield copies, attempt

    def attempts(self, unlisted: Unlisted | None = None) -> Iterator[tuple[StagedCopies, str, str]]:
        """All attempts: where, of which checkpoint, its id. See `StagedCopies.attempts`."""
        for copies in self.roots:
            for checkpoint, attempt in copies.attempts(unlisted):
                yield copies, checkpoint, attempt

    def remove(self, checkpoint: str, attempt: str) -> bool:
        """Remove an attempt, wherever it is; returns whether it has gone. See `StagedCopies`."""
        key = layout.attempt_key(checkpoint, attempt)
        there = [copies for copies in self.roots if copies.store.info(key) is not None]
        has_gone = [copies.remove(checkpoint, attempt) for copies in there]
        return all(has_gone)

    def remove_all(self) -> None:
        """Remove the directories themselves."""
        for copies in self.roots:
            copies.remove_all()
            with suppress(OSError):  # another node of this machine may use it
                copies.root.parent.rmdir()
