"""Do the steps in another order, or leave one out, and the crash loop sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.crash.invariants import ViolatedError
from tests.crash_buckets import mutants
from tests.crash_buckets.loop import explore
from tests.crash_buckets.run import Run
from tests.crash_buckets.scenarios import SCENARIOS
from tune_sync.homes.bucket.commit import BucketCommitter

ORDERS = [
    (mutants.ManifestBeforeCheck, "ranks_disagree_and_the_lowest_comes_last", "MANIFEST"),
    (mutants.ManifestAtPlace, "two_ranks", "MANIFEST"),
    (mutants.ObjectsBeforeManifest, "retire_after_state", "MANIFEST"),
    (mutants.RetiresWithoutMark, "retire_after_state", "CLEAN"),
    (mutants.StagingFirst, "retire_after_state", "CLEAN"),
    (mutants.SealsGoFirst, "publish_one", "INTENDED"),
    (mutants.LeavesWhatNoSealNames, "retry_with_other_names", "CLEAN"),
    (mutants.BelievesTheLowestRank, "ranks_disagree_and_the_lowest_comes_last", "MANIFEST"),
    (mutants.TakesInAfterwards, "ranks_disagree_and_the_lowest_comes_last", "MANIFEST"),
    (mutants.TakesInFirst, "an_earlier_large_file_comes_last", "ACKNOWLEDGED"),
    (mutants.LeavesAside, "ranks_disagree_and_the_lowest_comes_last", "MANIFEST"),
    (mutants.DropsAllStaged, "record_twice", "INTENDED"),
    (mutants.ForgetsIntents, "publish_one", "INTENDED"),
    (mutants.WaitsForTheDriver, "taken_by_a_driver_that_says_so_later", "ACKNOWLEDGED"),
    (mutants.WaitsForTheDriver, "ranks_sent_behind_a_dead_driver", "ACKNOWLEDGED"),
    (mutants.TakesAnyCompleteSeal, "sealed_again_after_the_delete", "RETIRED"),
    (mutants.KeepsMarksOfDeletes, "use_a_name_whose_delete_was_cut_off", "INTENDED"),
    (mutants.SweepsWhatIsPlaced, "ends_before_all_is_recorded", "ACKNOWLEDGED"),
    (mutants.GivesUpWithoutTrace, "given_up_and_tried_again", "CLEAN"),
]


@pytest.mark.parametrize(("committer", "name", "invariant"), ORDERS)
def test_another_order_is_seen(committer: Any, name: str, invariant: str) -> None:
    assert _violated(committer, Run, name) == invariant


@pytest.mark.parametrize("run", [mutants.StateBeforeRecord, mutants.RetireBeforeState])
def test_another_order_of_state_is_seen(run: Any) -> None:
    assert _violated(BucketCommitter, run, "retire_after_state") == "STATE"


def _violated(committer: Callable[..., Any], run: Callable[..., Any], name: str) -> str:
    try:
        explore(SCENARIOS[name], committer, run, crash_recovery=True)
    except ViolatedError as error:
        return str(error).partition(":")[0]
    return "nothing"
