"""What a node has staged arrives, whole and once, after a crash at any moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.loop import ENDINGS
from tests.crash_staging.loop import explore
from tests.crash_staging.scenarios import SCENARIOS

# There are some hundred changes in each story. Stories begin at different ones.
EVERY = 83
STORIES = [(11 * number, name) for number, name in enumerate(SCENARIOS)]
SOME_ENDINGS = [ENDINGS[0], ENDINGS[1], ENDINGS[-2]]


@pytest.mark.parametrize(("begin", "name"), STORIES)
def test_what_is_staged_arrives_after_a_crash(begin: int, name: str, memory: Path) -> None:
    story = SCENARIOS[name]
    assert explore(story, memory, every=EVERY, begin=begin, endings=SOME_ENDINGS) > 5


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_what_is_staged_arrives_after_a_crash_at_any_change(name: str, memory: Path) -> None:
    assert explore(SCENARIOS[name], memory) > 300


@pytest.mark.slow
@pytest.mark.parametrize(("begin", "name"), STORIES)
def test_what_follows_a_crash_may_be_cut_off_too(begin: int, name: str, memory: Path) -> None:
    assert explore(SCENARIOS[name], memory, every=7, begin=begin, crash_recovery=True) > 300
