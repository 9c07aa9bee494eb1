"""Each step on a node is needed: leave it out, or do it in another order, and the loop sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.invariants import ViolatedError
from tests.crash_staging import mutants
from tests.crash_staging.loop import explore
from tests.crash_staging.run import Parts
from tests.crash_staging.scenarios import SCENARIOS

STAGED, SENT = "node/run1/node1/.tune_sync/staging", "home/.tune_sync/staging"

# Functions that bring something to disk, as they call each other; what is lost without; and where
# that is seen, or the loop would look at hundreds of crashes before.
SYNCS = [
    ("confirm seal sync_tree", "found_by_another_agent", "SEALED", f"make_dir {SENT}"),
    ("confirm seal _replace sync", "found_by_another_agent", "CONFIRMED", f"make_dir {SENT}"),
    ("confirm _sync_above", "found_by_another_agent", "CONFIRMED", f"make_dir {SENT}"),
    ("mark_as sync", "found_by_another_agent", "CONFIRMED", f"make_dir {SENT}"),
    ("remove_all sync", "alone", "EMPTY", "remove node/run1/node1.ending/.tune_sync/staged"),
]

ORDERS = [
    (Parts(staging=mutants.SealsFirst), "streamed", "SEALED", f"write_at {STAGED}"),
    (Parts(staging=mutants.SealsLater), "streamed", "HELD", f"make_dir {SENT}"),
    (Parts(agent=mutants.NotesFirst), "streamed", "SENT", f"make_dir {SENT}"),
    (Parts(agent=mutants.RemovesFirst), "streamed", "HELD", "seal.json"),
    (Parts(agent=mutants.ForgetsWhatIsPutBack), "no_answer_at_first", "HELD", "the end"),
    (Parts(agent=mutants.TakesSilenceForYes), "answers_lost", "SENT", "the end"),
    (Parts(arrivals=mutants.ForgetsWhatItPlaced), "answers_lost", "SENT", "the end"),
    (Parts(cut=mutants.NeedsNothing), "driver_killed", "STATE", "rename home/trial_a"),
    (Parts(cut=mutants.DeletesAtOnce), "driver_killed", "STATE", "rename home/experiment_state"),
    (Parts(agent=mutants.LooksWhenTold), "found_by_another_agent", "HELD", f"make_dir {SENT}"),
    (Parts(to_peer=mutants.CountsAtOnce), "replicated", "SEALED", "write_at peer/shm"),
    (Parts(to_peer=mutants.RepliesFirst), "replicated", "REPLICATED", "the end"),
]


@pytest.mark.parametrize(("forgets", "name", "invariant", "only"), SYNCS)
def test_every_sync_is_needed(
    forgets: str, name: str, invariant: str, only: str, memory: Path
) -> None:
    assert _violated(Parts(forgets=forgets), name, only, memory) == invariant


@pytest.mark.parametrize(("parts", "name", "invariant", "only"), ORDERS)
def test_another_order_is_seen(
    parts: Parts, name: str, invariant: str, only: str, memory: Path
) -> None:
    assert _violated(parts, name, only, memory) == invariant


def _violated(parts: Parts, name: str, only: str, base: Path) -> str:
    try:
        explore(SCENARIOS[name], base, parts, only=only)
    except ViolatedError as error:
        return str(error).partition(":")[0]
    return "nothing"
