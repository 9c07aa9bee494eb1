"""What has to hold of what a node has staged, after any crash of its processes, or of the node.

Right after a crash (`check_at_once`), on the node and at the destination:

* SEALED     What has a seal that counts is whole: all files of one report, with their bytes. What a
             node was removing is stored, or of no use: it may come back in parts after a power cut,
             and is not sent as a whole.

Once the run has gone on, and has ended, or once the next one has restored it:

* HELD       After the death of processes a new agent has all that was reported.
* SENT       What a node says is stored can be published.
* STAGED     After the death of processes, all that was reported is published; by the next run:
             each trial's newest.
* CONFIRMED  After a power cut of the node, all that its agent had confirmed is.
* REPLICATED Once the node that staged it is lost, all that was reported as replicated is.
* EMPTY      Nothing of a checkpoint is left in the directory where nodes stage. A crash as the
             first trial came may leave that it was there.
* GONE       Where the run itself has ended, nothing at all is.

What is at the destination is looked at as after a crash there, see `tests.crash.invariants`: what
is visible is whole, and is what was reported; it is published, once; and nothing else is left.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from tests.crash.invariants import ViolatedError, tree
from tests.crash.invariants import check_at_once as check_visible
from tests.crash.invariants import check_recovered as check_home
from tests.crash.ledger import Contents
from tests.crash_staging.ledger import StagedLedger
from tests.manifests import manifests_of
from tune_sync import layout
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.errors import DamagedError
from tune_sync.homes.commit import Committer
from tune_sync.homes.store import LocalStore
from tune_sync.layout import by_age, parent, staged_key
from tune_sync.manifest import Seal


def check_at_once(world: Path, ledger: StagedLedger) -> None:
    """SEALED, on all nodes and at the destination, and what is visible there."""
    home = world / "home"
    for root in (path.parent for path in world.rglob(layout.INTERNAL_DIR)):
        check_sealed(root, ledger, ledger.removing if root != home else ())
    check_visible(LocalStore(home), ledger)


def check_sealed(root: Path, ledger: StagedLedger, removing: Collection[str]) -> None:
    """SEALED, below one directory, but for what was being removed."""
    copies = StagedCopies(root)
    for checkpoint, attempt in copies.attempts():
        try:
            seal = copies.seal(checkpoint, attempt)
        except DamagedError:
            continue  # counts for nothing
        if seal is None or attempt in removing or _is_placed(copies, checkpoint, attempt):
            continue
        parts = [_listed(part, seal) for part in ledger.parts[checkpoint]]
        found = tree(copies.store, staged_key(checkpoint, attempt))
        demand("SEALED", _listed(found, seal) in parts, f"{root} {checkpoint}: {found}")


def _is_placed(copies: StagedCopies, checkpoint: str, attempt: str) -> bool:
    """Whether it is visible by now, and not recorded."""
    is_noted = copies.store.info(layout.intent_key(checkpoint, attempt)) is not None
    return is_noted and copies.store.info(staged_key(checkpoint, attempt)) is None


def check_published(home: Path, ledger: StagedLedger, *, killed: bool) -> None:
    """STAGED or CONFIRMED, where the driver has gone on; and what is at the destination."""
    name = "STAGED" if killed else "CONFIRMED"
    published = _published(home)
    for checkpoint in ledger.accepted:
        if ledger.survives(checkpoint, killed=killed):
            demand(name, checkpoint in published, f"{checkpoint} is not published")
    check_home(LocalStore(home), ledger, process_only=killed)


def check_replicated(home: Path, ledger: StagedLedger) -> None:
    """REPLICATED; and what is at the destination."""
    lost = ledger.replicated - _published(home)
    demand("REPLICATED", not lost, f"{lost} is not published")
    check_home(LocalStore(home), ledger, process_only=True)


def check_restored(home: Path, ledger: StagedLedger, *, killed: bool) -> None:
    """STAGED or CONFIRMED, where the next run has restored it; and what is at the destination."""
    name = "STAGED" if killed else "CONFIRMED"
    published = _published(home)
    for checkpoint in ledger.alone:
        if ledger.survives(checkpoint, killed=killed):
            trial = [c for c in published if parent(c) == parent(checkpoint)]
            newest = max(map(by_age, trial), default=None)
            is_there = newest is not None and newest >= by_age(checkpoint)
            demand(name, is_there, f"{checkpoint} is not published, but {sorted(published)}")
    check_home(LocalStore(home), ledger, process_only=killed)


def check_empty(staging: Path) -> None:
    """EMPTY."""
    left = [Path(base, name) for base, _, names in os.walk(staging) for name in names]
    left = [path for path in left if path.parent.name != layout.INTERNAL_DIR]
    demand("EMPTY", not left, repr(left))


def check_gone(staging: Path) -> None:
    """GONE."""
    left = [*staging.rglob("*")]
    demand("GONE", not left, repr(left))


def demand(name: str, holds: bool, what: str) -> None:
    if not holds:
        raise ViolatedError(f"{name}: {what}")


def _published(home: Path) -> set[str]:
    return {manifest.checkpoint for manifest in manifests_of(Committer(LocalStore(home)))}


def _listed(contents: Contents, seal: Seal) -> Contents:
    """Files alone: a seal may grow, and directories come with the last one."""
    paths = {file.path for file in seal.files}
    return {path: data for path, data in contents.items() if path in paths}
