"""Kills drivers and clusters at random moments, of plain Ray and of ours, and counts what is left.

    python -m benchmarks.kills [--kills 20] [--seed 1] [--only plain]

The harness is that of the tests, `tests/kills`: the same kills, at the same moments, for all.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Iterator, Sequence

from tests.kills.arena import Arena
from tests.kills.harness import Outcome, Trying
from tests.kills.plan import ALL, DRIVER, PERIODIC, REPLICATED, STAGED, STORED, experiment

CONTENDERS = {"plain": "", **{mode: mode for mode in (STORED, STAGED, REPLICATED, PERIODIC)}}
TITLES = {
    "": "Ray alone",
    STORED: 'ours, `wait_for="stored"`',
    STAGED: 'ours, `wait_for="staged"`',
    REPLICATED: 'ours, `wait_for="replicated"`',
    PERIODIC: "ours, `sync_on_checkpoint=False`",
}
KEPT = (1, 2, None)
CHAIN = (ALL, DRIVER, ALL, DRIVER)
COLUMNS = (
    "", "`num_to_keep`", "kills", "clean", "did not restore", "names what is not there",
    "went back", "from scratch", "most steps back",
)  # fmt: skip


def outcomes(arena: Arena, mode: str, count: int, seed: int) -> Iterator[Outcome]:
    """So many kills, the same number for each `num_to_keep`.

    Where a kill was not got over, the rest of its experiment is not there to be killed: the next
    experiment makes up for it.
    """
    for keep in KEPT:
        found = (
            outcome
            for number in itertools.count(seed)
            for outcome in Trying(
                arena, experiment(number, mode, keep, _turned(number)), _say
            ).run()
        )
        yield from itertools.islice(found, count // len(KEPT))


def table(found: Sequence[Outcome]) -> str:
    """As it stands in docs/benchmarks.md."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for mode, title in TITLES.items():
        for keep in KEPT:
            some = [o for o in found if _kind(o) == (mode, keep)]
            if some:
                lines.append("| " + " | ".join([title, str(keep), *_row(some)]) + " |")
    return "\n".join(lines)


def _turned(number: int) -> Sequence[str]:
    """Every second one begins with the other kind: most of plain Ray's get to one kill only."""
    return CHAIN[number % 2 :] + CHAIN[: number % 2]


def _kind(outcome: Outcome) -> tuple[str, int | None]:
    return outcome.experiment.mode, outcome.experiment.num_to_keep


def _row(found: Sequence[Outcome]) -> list[str]:
    back = [setback for outcome in found for setback in outcome.setbacks]
    counts = [
        len(found),
        _count(not o.problems for o in found),
        _count(bool(o.failure) for o in found),
        _count(bool(o.bad) for o in found),
        _count(bool(o.setbacks) for o in found),
        _count(any(not s.first for s in o.setbacks) for o in found),
        max((s.steps_count for s in back), default=0),
    ]
    return [str(count) for count in counts]


def _count(holds: Iterable[bool]) -> int:
    return sum(holds)


def _say(line: str) -> None:
    print(line[:400], flush=True)


def main() -> None:
    """Run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=21, help="of each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=CONTENDERS, action="append")
    asked = parser.parse_args()
    with Arena() as arena:
        found = [
            outcome
            for name in asked.only or CONTENDERS
            for outcome in outcomes(arena, CONTENDERS[name], asked.kills, asked.seed)
        ]
    print(table(found))


if __name__ == "__main__":
    main()
