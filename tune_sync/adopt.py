"""What a restore makes of the published checkpoints that the saved state does not name. Pure.

Ray saves its state every ten seconds or so. What was published since is whole, and was reported:
a trial goes on from its newest. And what Ray had deleted shortly before a crash may still be there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Record:
    """What the restored state says of a trial. Checkpoints are numbers, all of its own directory.

    Attributes:
        index: The highest number that was used.
        kept: What Ray keeps a record of, and is there.
        is_lost: Whether the checkpoint that the trial would go on from is not there.
        keeps_few: Whether Ray deletes old checkpoints (`num_to_keep`).
        is_finished: Whether the trial will not go on.
    """

    index: int
    kept: frozenset[int]
    is_lost: bool = False
    keeps_few: bool = False
    is_finished: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about a trial.

    Attributes:
        adopt: To be registered with Ray, oldest first.
        is_anew: Whether Ray's record has to be made anew, of these alone.
        retire: To be deleted.
    """

    adopt: tuple[int, ...] = ()
    is_anew: bool = False
    retire: tuple[int, ...] = ()


def plan(record: Record, published: Collection[int], in_use: Collection[int] = ()) -> Plan:
    """Say what to do about a trial.

    Args:
        record: What the restored state says.
        published: The numbers of its whole checkpoints.
        in_use: Of these, what any trial would go on from, also another one that cloned it.
    """
    if record.is_lost and not record.is_finished:
        left = tuple(sorted({*published, *record.kept}))
        return Plan(left, is_anew=bool(left))
    newest_kept = max(record.kept, default=-1)
    newest = newest_kept if record.kept else record.index  # the index may be ahead: see `reserve`
    old = (n for n in published if n < newest_kept and n not in record.kept and n not in in_use)
    retire = tuple(sorted(old)) if record.keeps_few else ()
    if record.is_finished:
        return Plan(retire=retire)
    return Plan(tuple(sorted(n for n in published if n > newest)), retire=retire)


def find_directory(trial_id: str, directories: Collection[str]) -> str:
    """The directory of a trial that was saved before it had one, by its id; "" if there is none.

    Args:
        trial_id: Ray's.
        directories: Those that belong to no other trial.
    """
    found = (d for d in directories if f"_{trial_id}_" in f"_{d}_")
    return max(found, default="")
