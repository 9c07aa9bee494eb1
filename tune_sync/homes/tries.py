"""Which parts in staging are a whole checkpoint. Pure.

While the driver lives: all that was reported. When it is dead: what surely is one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from tune_sync import layout
from tune_sync.errors import NotWholeError
from tune_sync.manifest import Seal

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

Try = tuple[Seal, ...]


def whole_tries(
    seals: Collection[Seal], is_there: Callable[[Seal, Seal], bool] = lambda first, seal: True
) -> list[Try]:
    """All sets of parts that each surely are the whole checkpoint, the latest first.

    One writer's part may say so itself. Of several ranks, only the driver knew which had reported,
    and of which try: where it had told a node, the parts that are sent from there name all. A part
    that was sent twice has two attempts of one name: the latest is taken whose bytes are there.

    Args:
        seals: All that can be read.
        is_there: Of the first part of a set and any of it: whether that one's bytes are there.
    """
    named: dict[str, list[Seal]] = {}
    for seal in sorted(seals, key=lambda s: -s.sealed_s):
        named.setdefault(seal.name, []).append(seal)
    found: list[Try] = [(seal,) for seal in seals if seal.is_all and is_there(seal, seal)]
    for parts in {frozenset(seal.parts) for seal in seals if seal.parts}:
        if parts <= named.keys():
            ranks = sorted((named[name] for name in parts), key=lambda same: same[0].rank)
            for first in ranks[0]:
                rest = [[s for s in same if is_there(first, s)] for same in ([first], *ranks[1:])]
                found += [tuple(same[0] for same in rest)] if all(rest) else []
    return sorted(found, key=lambda one: -max(seal.sealed_s for seal in one))


def check_reported(checkpoint: str, reported: Collection[str], there: Collection[str]) -> None:
    """Raise unless all parts that were reported are there: less is never published.

    Args:
        checkpoint: For the message.
        reported: Attempts, as the driver knows them: of each rank the last, and none of a try that
            was given up.
        there: Attempts whose seals are there.

    Raises:
        NotWholeError: It names what is missing.
    """
    missing = sorted(set(reported).difference(there))
    if missing:
        names = ", ".join(layout.seal_key(checkpoint, attempt) for attempt in missing)
        raise NotWholeError(
            f"{len(missing)} of the {len(set(reported))} parts of {checkpoint} that were reported "
            f"are not there: {names}; none of it is published, and what is there is kept: look at "
            "how the nodes that wrote it reach the destination, then restore the run, or go on "
            "from an older checkpoint"
        )


def why_not_whole(seals: Collection[Seal]) -> str:
    """Why none of these parts of several ranks is taken; "" if there are none of that kind."""
    several = [seal for seal in seals if seal.parts or (seal.ranks_count or 1) > 1]
    if not several:
        return ""
    ranks = ", ".join(str(rank) for rank in sorted({seal.rank for seal in several}))
    there = {seal.name for seal in seals}
    for seal in several:
        if seal.parts and not there.issuperset(seal.parts):
            missing_count = len(set(seal.parts) - there)
            return (
                f"{missing_count} of its {len(seal.parts)} parts never arrived; ranks {ranks} did"
            )
    counts = max(seal.ranks_count or 1 for seal in several)
    return (
        f"parts of ranks {ranks} of {counts} have arrived, and its driver died before it had told "
        "whether they are all that was reported"
    )


def lacks_parts(seals: Collection[Seal]) -> bool:
    """Whether these would be a whole checkpoint if parts of other ranks came."""
    return not whole_tries(seals) and bool(why_not_whole(seals))


def may_come(seals: Collection[Seal], sent_since_s: float | None) -> bool:
    """Whether parts of other ranks may come to these.

    Args:
        seals: What is there.
        sent_since_s: Only from where one of these has come, too: from the staging of a node, if it
            was sealed since then, in seconds since the epoch. None: they may come anyway.
    """
    return sent_since_s is None or any(s.staged_as and s.sealed_s >= sent_since_s for s in seals)


def warn_of_parts(checkpoint: str, seals: Collection[Seal]) -> None:
    """Say that parts of several ranks are dropped, and why."""
    why = why_not_whole(seals)
    if why:
        logger.warning(
            "%s is not published: %s; its trial goes on from its newest checkpoint that is whole",
            checkpoint, why,
        )  # fmt: skip
