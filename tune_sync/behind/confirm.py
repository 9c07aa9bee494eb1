"""Confirms what was staged: makes it durable, and reads what nobody has read, for its digest.

`tune.report` waits for neither. Until this is done a checkpoint survives the processes of its node,
and not the node.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tune_sync import layout
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.errors import DamagedError, StoreFullError
from tune_sync.homes.commit import Committer
from tune_sync.homes.digests import digest_of_file
from tune_sync.manifest import Seal


def confirm(
    copies: StagedCopies, checkpoint: str, seal: Seal, moved: Callable[[], object] = lambda: None
) -> Seal:
    """Return the seal of what an attempt holds, with all digests; it is durable then.

    What is confirmed stays as it is. May be called again after an error. `moved` is called as files
    are read.

    Raises:
        DamagedError: A file was changed after it was handed over. It is no checkpoint any more.
        FileNotFoundError: It was removed meanwhile.
    """
    if seal.is_confirmed:
        return seal
    data = copies.store.path(layout.staged_key(checkpoint, seal.attempt))
    confirmed = seal.confirmed(lambda path: digest_of_file(data / path, moved))
    _check(copies, checkpoint, seal)  # what was read is what was handed over
    with copies.held(checkpoint, seal.attempt) as is_there:  # what was removed is not made again
        if is_there and _is_newest(copies, checkpoint, seal):
            with suppress(StoreFullError):  # no room for the seal: it is durable once it is sent
                Committer(copies.store).seal(checkpoint, confirmed, is_home=False)
    return confirmed


def _is_newest(copies: StagedCopies, checkpoint: str, seal: Seal) -> bool:
    """Whether its writer has not written more since."""
    found = copies.seal(checkpoint, seal.attempt)
    return found is not None and found.sealed_s == seal.sealed_s


def _check(copies: StagedCopies, checkpoint: str, seal: Seal) -> None:
    changed = copies.first_changed(checkpoint, seal)
    if changed:
        copies.take_back(checkpoint, seal.attempt)
        raise DamagedError(
            f"{changed}: it is not stored; a program that has it open goes on writing to it: let "
            "that end before tune.report"
        )
