"""Whatever is killed, whenever: what is in the bucket restores, and nothing acknowledged is lost.

Isolated hosts, a real S3 server behind 20 ms, SIGKILL at moments that come from a seed. Another
seed: `TUNE_SYNC_KILLS_SEED`. How many the slow tests do: `TUNE_SYNC_KILLS`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pytest

from tests.kills.arena import Arena
from tests.kills.harness import Trying
from tests.kills.plan import (
    AGENT,
    ALL,
    DRIVER,
    HOST,
    PERIODIC,
    REPLICATED,
    STAGED,
    STORED,
    experiment,
    kinds_of,
)

pytestmark = [pytest.mark.hosts]

SEED = int(os.environ.get("TUNE_SYNC_KILLS_SEED", "1"))
SLOW_COUNT = int(os.environ.get("TUNE_SYNC_KILLS", "200"))
KILLS_COUNT = 4  # of one experiment in the slow tests
# Slower than the trials write: something is always under way, and much of it with "staged".
RATE_MBIT = 100
KEPT = (1, 2, None)
MODES = (STORED, STAGED, REPLICATED, PERIODIC)


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    with Arena(RATE_MBIT) as running:
        yield running


def run(
    arena: Arena, seed: int, mode: str, keep: int | None, kinds: Sequence[str],
    *, ends_alone: bool = False,
) -> None:  # fmt: skip
    trying = Trying(arena, experiment(seed, mode, keep, kinds), ends_alone=ends_alone)
    found = [*trying.run()]
    problems = [str(outcome) for outcome in found if outcome.problems]
    if problems:
        arena.cluster.keep_logs()
    assert problems == []
    assert len(found) == len(kinds)


@pytest.mark.parametrize(
    ("seed", "mode", "keep", "kinds", "ends_alone"),
    [
        (SEED, STORED, 1, [DRIVER, ALL, DRIVER], False),
        (SEED + 1, STORED, 2, [ALL, DRIVER], True),
        (SEED + 2, STORED, None, [DRIVER, HOST, DRIVER], False),
        (SEED + 3, STAGED, None, [AGENT, DRIVER, ALL, DRIVER], False),
        (SEED + 4, REPLICATED, 2, [AGENT, HOST, ALL, DRIVER], False),
        (SEED + 5, PERIODIC, 1, [AGENT, DRIVER, HOST, ALL], False),
    ],
)
def test_some_kills(
    arena: Arena, seed: int, mode: str, keep: int | None, kinds: Sequence[str], ends_alone: bool
) -> None:
    run(arena, seed, mode, keep, kinds, ends_alone=ends_alone)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_ray_alone_goes_on_from_the_bucket_after_kills(arena: Arena, mode: str) -> None:
    run(arena, SEED, mode, 2, [DRIVER, ALL], ends_alone=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEED, SEED + -(-SLOW_COUNT // KILLS_COUNT)))
def test_many_kills(arena: Arena, seed: int) -> None:
    mode, keep = MODES[seed % len(MODES)], KEPT[seed // len(MODES) % len(KEPT)]
    run(arena, seed, mode, keep, kinds_of(seed, mode, KILLS_COUNT))
