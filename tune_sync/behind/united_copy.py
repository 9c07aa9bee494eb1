"""`UnitedCopy`: parts of several ranks that are all on this node, read as one checkpoint."""

from __future__ import annotations

import builtins
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tune_sync import layout
from tune_sync.behind.node_copies import CopyHere, NodeCopies
from tune_sync.behind.node_disk import MADE_NAME, MAKING_DIR
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.errors import DamagedError, RanksDisagreeError
from tune_sync.fastpath.budget import TAKES
from tune_sync.homes.store import Info
from tune_sync.manifest import Manifest, Seal, Union, unite
from tune_sync.process import owned_name


class UnitedCopy:
    """A whole copy whose files are in several attempts. As `node_copies.CopyHere`.

    Args:
        checkpoint: Its key.
        parts: The attempts, by their ids.
        union: What they are together.
    """

    def __init__(self, checkpoint: str, parts: dict[str, CopyHere], union: Union) -> None:
        self.checkpoint = checkpoint
        self.attempt = "+".join(sorted(parts))
        self._parts = parts
        self._union = union
        first = parts[union.seals[0].attempt]
        moved = {path: parts[attempt] for attempt, path in union.moves}
        self._files = {file.path: moved.get(file.path, first) for file in union.files}
        self._directories = {*union.directories, *(d for path in self._files for d in _above(path))}

    def info(self, key: str) -> Info | None:
        """See `CopyHere.info`."""
        inner = self._inside(key)
        part = self._files.get(inner)
        if part is not None:
            return part.info(key)
        self._check()
        return Info(key, True, 0, 0.0) if not inner or inner in self._directories else None

    def list(self, key: str, recursive: bool) -> builtins.list[Info]:
        """See `CopyHere.list`."""
        top = self._inside(key)
        names = (name for name in sorted({*self._files, *self._directories}) if name != top)
        inner = ((name, layout.below(top, name) if top else name) for name in names)
        wanted = [name for name, at in inner if at and (recursive or "/" not in at)]
        found = [self.info(f"{self.checkpoint}/{name}") for name in wanted]
        self._check()
        return [info for info in found if info is not None]

    def read(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """See `CopyHere.read`."""
        part = self._files.get(self._inside(key))
        if part is None:
            raise FileNotFoundError(key)
        return part.read(key, offset_bytes, length_bytes)

    def is_of(self, manifest: Manifest) -> bool:
        """See `CopyHere.is_of`."""
        return self._union.files == manifest.files

    def is_published(self) -> bool:
        """See `CopyHere.is_published`."""
        return all(part.is_published() for part in self._parts.values())

    @contextmanager
    def held(self) -> Iterator[Path | None]:
        """A directory of links to the files, for as long; None if one has just gone.

        None too if they are not in one file system.
        """
        with ExitStack() as stack:
            held = [stack.enter_context(part.held()) for part in self._parts.values()]
            roots = {part.copies.root for part in self._parts.values()}
            if None in held or len(roots) > 1:
                yield None
                return
            base = roots.pop() / MAKING_DIR / owned_name()  # if this process is killed it is swept
            stack.callback(shutil.rmtree, base, ignore_errors=True)
            yield self._linked(base)

    # Inside

    def _inside(self, key: str) -> str:
        """The part of a key below the checkpoint; "" for itself."""
        inner = layout.below(self.checkpoint, key)
        if inner is None:
            raise FileNotFoundError(f"{key} is not in {self.checkpoint}")
        return inner

    def _linked(self, base: Path) -> Path | None:
        made = base / MADE_NAME
        try:
            made.mkdir(parents=True)
            (base / TAKES).touch()  # its files count where they are
            for directory in self._directories:
                (made / directory).mkdir(parents=True, exist_ok=True)
            for path, part in self._files.items():
                os.link(part.path(f"{self.checkpoint}/{path}"), made / path)
        except OSError:  # no room, or a file system without links: it is copied
            return None
        return made

    def _check(self) -> None:
        for part in self._parts.values():
            part.check()


def whole_of(copies: NodeCopies, checkpoint: str) -> CopyHere | UnitedCopy | None:
    """A whole copy on this node, in one attempt or in those that the driver has told of."""
    return copies.whole(checkpoint) or _united(copies, checkpoint)


def _united(copies: NodeCopies, checkpoint: str) -> UnitedCopy | None:
    found: dict[str, tuple[StagedCopies, Seal]] = {}
    told: set[frozenset[str]] = set()
    for root, attempt in copies.of(checkpoint):
        with suppress(DamagedError, FileNotFoundError):
            seal = root.seal(checkpoint, attempt)
            if seal is not None and seal.is_confirmed:
                found[seal.name] = root, seal
                told.add(frozenset(root.parts(checkpoint, attempt) or seal.parts or ()))
    tries = [parts for parts in told if len(parts) > 1 and parts <= found.keys()]
    if len(tries) != 1:  # of two nobody here can tell which one counts
        return None
    seals = [found[name][1] for name in tries[0]]
    try:
        union = unite(checkpoint, seals, strict=False)
    except RanksDisagreeError:  # it is never published
        return None
    if union.conflicts or len(union.seals) < len(seals):  # whether it may be is not known here
        return None
    parts = {
        seal.attempt: CopyHere(found[seal.name][0], checkpoint, seal.attempt) for seal in seals
    }
    return UnitedCopy(checkpoint, parts, union)


def _above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
