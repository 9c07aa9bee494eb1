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
from tests.kills.plan import AGENT, ALL, DRIVER, HOST, experiment, kinds_of

pytestmark = [pytest.mark.hosts]

SEED = int(os.environ.get("TUNE_SYNC_KILLS_SEED", "1"))
SLOW_COUNT = int(os.environ.get("TUNE_SYNC_KILLS", "200"))
KILLS_COUNT = 4  # of one experiment in the slow tests
# Slower than the trials write: something is always under way, and much of it with "staged".
RATE_MBIT = 100
KEPT = (1, 2, None)
WAITED_FOR = ("stored", "staged")


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    with Arena(RATE_MBIT) as running:
        yield running


def run(arena: Arena, seed: int, wait_for: str, keep: int | None, kinds: Sequence[str]) -> None:
    found = [*Trying(arena, experiment(seed, wait_for, keep, kinds)).run()]
    problems = [str(outcome) for outcome in found if outcome.problems]
    if problems:
        arena.cluster.keep_logs()
    assert problems == []
    assert len(found) == len(kinds)


@pytest.mark.parametrize(
    ("wait_for", "keep", "kinds"),
    [
        ("stored", 1, [DRIVER, ALL, DRIVER]),
        ("stored", 2, [ALL, DRIVER]),
        ("stored", None, [DRIVER, HOST, DRIVER]),
        ("staged", 1, [AGENT, DRIVER, AGENT, ALL]),
        ("staged", 2, [AGENT, HOST, ALL, DRIVER]),
        ("staged", None, [AGENT, DRIVER, ALL, DRIVER]),
    ],
)
def test_some_kills(arena: Arena, wait_for: str, keep: int | None, kinds: Sequence[str]) -> None:
    run(arena, SEED, wait_for, keep, kinds)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEED, SEED + -(-SLOW_COUNT // KILLS_COUNT)))
def test_many_kills(arena: Arena, seed: int) -> None:
    wait_for, keep = WAITED_FOR[seed % 2], KEPT[seed // 2 % 3]
    run(arena, seed, wait_for, keep, kinds_of(seed, wait_for, KILLS_COUNT))
