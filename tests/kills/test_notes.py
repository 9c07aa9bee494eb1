"""The harness can tell: what has to hold follows from the notes, and from the seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kills import notes
from tests.kills.notes import Setback
from tests.kills.plan import AGENT, ALL, DRIVER, ENDS_DRIVER, experiment, kinds_of
from tests.kills.reader import index_of


def start(first: int, life: int) -> dict[str, Any]:
    return {"event": "start", "first": first, "life": life, "host": "w1"}


def acked(*steps: int) -> list[dict[str, Any]]:
    return [{"event": "acked", "step": step} for step in steps]


FIRST = [start(0, 0), *acked(0, 1, 2)]
LOST = {"event": "lost", "stored": 0}


@pytest.mark.parametrize(
    ("written", "life", "found"),
    [
        pytest.param([*FIRST, start(3, 1)], 1, [], id="goes on after what was acknowledged"),
        pytest.param([*FIRST, start(4, 1)], 1, [], id="what was not acknowledged may be there"),
        pytest.param([*FIRST, start(2, 1)], 1, [Setback(2, 2)], id="a step back"),
        pytest.param([*FIRST, start(0, 1)], 1, [Setback(2, 0)], id="from scratch"),
        pytest.param([*FIRST, start(0, 1)], 0, [], id="of another life"),
        pytest.param([*FIRST, LOST, start(1, 1)], 1, [], id="the rest was lost"),
        pytest.param([*FIRST, LOST, start(0, 1)], 1, [Setback(0, 0)], id="not all was lost"),
        pytest.param([*FIRST, LOST, start(1, 0), *acked(1), start(1, 0)], 0, [Setback(1, 1)],
                     id="acknowledged after the loss"),
        pytest.param([start(0, 0), start(0, 1)], 1, [], id="nothing was acknowledged"),
    ],
)  # fmt: skip
def test_setbacks(written: list[dict[str, Any]], life: int, found: list[Setback]) -> None:
    assert notes.setbacks(written, life) == found


def test_what_was_lost_is_not_durable_at_the_end() -> None:
    assert notes.newest_durable([]) == -1
    assert notes.newest_durable(FIRST) == 2
    assert notes.newest_durable([*FIRST, LOST, start(1, 1), *acked(1)]) == 1


def test_where_ray_alone_goes_on_follows_from_the_state() -> None:
    named = [{"index": 0, "step": step, "error": ""} for step in (3, 4)]
    named.append({"index": 0, "step": 9, "error": "it is not there"})  # told by itself
    assert notes.begun_elsewhere(named, {0: 5, 1: 0}) == []
    for firsts in ({0: 4, 1: 0}, {0: 6, 1: 0}, {0: 0, 1: 0}, {0: 5, 1: 1}):
        assert len(notes.begun_elsewhere(named, firsts)) == 1


def test_a_half_written_note_does_not_count(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    notes.add(file, event="acked", step=1)
    with file.open("a") as out:
        out.write('{"event": "ack')
    assert notes.newest_durable(notes.read(file)) == 1


def test_a_seed_gives_the_same_kills_and_the_last_one_ends_the_driver() -> None:
    for seed in range(50):
        kinds = kinds_of(seed, "staged", 5)
        assert kinds == kinds_of(seed, "staged", 5)
        assert len(kinds) == 5
        assert kinds[-1] in ENDS_DRIVER
        assert AGENT not in kinds_of(seed, "stored", 5)
    first = experiment(7, "stored", 1, [DRIVER, ALL])
    assert first == experiment(7, "stored", 1, [DRIVER, ALL])
    assert first.kills != experiment(8, "stored", 1, [DRIVER, ALL]).kills


def test_the_index_of_a_trial_is_told_from_its_directory() -> None:
    for trial_id in ("1a2b3", "87751", "abcde"):
        name = f"bucket/results/exp-1-2/train_{trial_id}_00002_2_index=2_2026-01-01_00-00-00"
        assert index_of(f"{name}/checkpoint_000007") == 2
