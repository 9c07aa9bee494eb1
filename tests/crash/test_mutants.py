"""Each step is needed: leave it out, or do it in another order, and the crash loop sees it."""

from __future__ import annotations

import pytest

from tests.crash import mutants
from tests.crash.invariants import ViolatedError
from tests.crash.loop import explore
from tests.crash.mutants import Without, Wrong
from tests.crash.run import Run
from tests.crash.scenarios import SCENARIOS
from tune_sync import layout
from tune_sync.homes.commit import Committer

SYNCS = [
    ("seal", "sync_tree", "publish_one", "WHOLE"),
    ("seal _sync_above", "sync", "publish_one", "COUNTS"),
    ("_gather", "sync", "two_ranks", "WHOLE"),
    ("_move_into_place", "sync", "replace_published", "RECORDED"),
    ("_move_into_place _sync_above", "sync", "replace_published", "RECORDED"),
    ("_move_into_place _drop_intents", "sync", "replace_before_it_is_recorded", "MANIFEST"),
    ("_set_aside", "sync", "replace_published", "MANIFEST"),
    ("record _sync_above", "sync", "publish_one", "COUNTS"),
    ("retire _drop_intents", "sync", "use_an_unrecorded_name_again", "MANIFEST"),
    ("retire", "sync", "retire_after_state", "WHOLE"),
    ("commit_file", "sync", "retire_after_state", "STATE"),
    ("_go_over _drop_orphaned_manifests", "sync", "deleted_by_hand", "MANIFEST"),
]

ORDERS = [
    (mutants.ManifestBeforeRename, "replace_published", "MANIFEST"),
    (mutants.ManifestBeforeSync, "replace_published", "MANIFEST"),
    (mutants.WritesOverTheIntent, "place_again_with_a_shorter_intent", "RECORDED"),
    (mutants.FileByFile, "publish_one", "WHOLE"),
    (mutants.RemovesInPlace, "retire_after_state", "WHOLE"),
    (mutants.KeepsOldManifest, "replace_published", "MANIFEST"),
    (mutants.PlacesWithoutIntent, "replace_published", "RECORDED"),
    (mutants.KeepsEarlierIntents, "replace_before_it_is_recorded", "MANIFEST"),
    (mutants.RemovesOldFirst, "replace_published", "RECORDED"),
    (mutants.TakesAnySealForWhole, "two_ranks", "WHOLE"),
    (mutants.DropsAllStaged, "publish_one", "COUNTS"),
    (mutants.CountsOnIntents, "publish_one", "COUNTS"),
    (
        mutants.LooksAtLengthsOnly,
        "use_an_unrecorded_name_again_for_what_looks_the_same",
        "MANIFEST",
    ),
    (mutants.WaitsForTheDriver, "ranks_sent_behind_a_dead_driver", "ACKNOWLEDGED"),
    (mutants.WritesIntoOneAttempt, "retry_with_other_names", "WHOLE"),
]


@pytest.mark.parametrize(("callers", "verb", "name", "invariant"), SYNCS)
def test_every_sync_is_needed(callers: str, verb: str, name: str, invariant: str) -> None:
    assert _violated(Without(callers, verb), Run, name) == invariant


REPLACING = [
    ("record _replace", layout.INCOMING_DIR, "MANIFEST"),
    ("record _replace", layout.MANIFESTS_DIR, "COUNTS"),
]


@pytest.mark.parametrize(("callers", "below", "invariant"), REPLACING)
def test_every_sync_of_a_file_that_is_replaced_is_needed(
    callers: str, below: str, invariant: str
) -> None:
    wrong = Without(callers, below=below)
    assert _violated(wrong, Run, "publish_one") == invariant


@pytest.mark.parametrize(("committer", "name", "invariant"), ORDERS)
def test_another_order_is_seen(committer: Wrong, name: str, invariant: str) -> None:
    assert _violated(committer, Run, name) == invariant


@pytest.mark.parametrize("run", [mutants.StateBeforeRecord, mutants.RetireBeforeState])
def test_another_order_of_state_is_seen(run: Wrong) -> None:
    assert _violated(Committer, run, "retire_after_state") == "STATE"


def _violated(committer: Wrong, run: Wrong, name: str) -> str:
    try:
        explore(SCENARIOS[name], committer, run)
    except ViolatedError as error:
        return str(error).partition(":")[0]
    return "nothing"
