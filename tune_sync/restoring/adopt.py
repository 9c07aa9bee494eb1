"""What a restore makes of the published checkpoints that the saved state does not name. Pure.

Ray saves its state every ten seconds or so. What was published since is whole, and was reported:
a trial goes on from its newest. And what Ray had deleted shortly before a crash may still be there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tune_sync.homes.saved_state import TrialNames


@dataclass(frozen=True, slots=True)
class Record:
    """What the restored state says of a trial. Checkpoints are numbers, all of its own directory.

    Attributes:
        index: The highest number that was used.
        kept: What Ray keeps a record of, and is there.
        is_lost: Whether the checkpoint that the trial would go on from is not there.
        keeps_few: Whether Ray deletes old checkpoints (`num_to_keep`).
        is_finished: Whether the trial will not go on.
        is_clone: Whether it would go on from another trial's checkpoint.
        is_trimmed: Whether even its latest may have been deleted, as it has ended (`keep_best`).
    """

    index: int
    kept: frozenset[int]
    is_lost: bool = False
    keeps_few: bool = False
    is_finished: bool = False
    is_clone: bool = False
    is_trimmed: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about a trial.

    Attributes:
        adopt: To be registered with Ray, oldest first.
        is_anew: Whether Ray's record has to be made anew, of these alone.
        retire: To be deleted, once no other trial that cloned it goes on from it.
    """

    adopt: tuple[int, ...] = ()
    is_anew: bool = False
    retire: tuple[int, ...] = ()


def plan(record: Record, published: Collection[int]) -> Plan:
    """Say what to do about a trial.

    Args:
        record: What the restored state says.
        published: The numbers of its whole checkpoints.
    """
    if record.is_lost and not record.is_finished:
        left = tuple(sorted({*published, *record.kept}))
        return Plan(left, is_anew=bool(left))
    newest_kept = max(record.kept, default=-1)
    # The index may be ahead of what is kept (see `reserve`), but all that a clone has of its own up
    # to there is older than what it would go on from.
    newest = record.index if record.is_clone and not record.kept else newest_kept
    unkept = (n for n in published if n not in record.kept)
    old = (n for n in unkept if n < newest_kept or record.is_trimmed)
    retire = tuple(sorted(old)) if record.keeps_few else ()
    if record.is_finished:
        return Plan(retire=retire)
    return Plan(tuple(sorted(n for n in published if n > newest)), retire=retire)


def find_directory(names: TrialNames, directories: Collection[str]) -> str:
    """The directory of a trial that was saved before it had one; "" if there is none.

    Args:
        names: What tells it.
        directories: Those that belong to no other trial.
    """
    found = (directory for directory in directories if names.has(directory))
    return max(found, key=lambda directory: (names.is_in(directory), directory), default="")
