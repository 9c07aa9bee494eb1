"""Checkpoints that several processes on several hosts report together."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bed import Cluster
from tests.hosts.drivers.ranks import AGREES, DISAGREES, RANKS_COUNT, STEPS

pytestmark = pytest.mark.hosts


@pytest.fixture(scope="module")
def ranked(cluster: Cluster) -> dict[str, Any]:
    """What came of two runs with four ranks each."""
    return cluster.drive("head", "tests/hosts/drivers/ranks.py")


def place(warning: str) -> str:
    """Of a warning, what sorts it by checkpoint."""
    return warning[warning.index("checkpoint_") :]


@pytest.mark.lowest
def test_a_checkpoint_of_several_ranks_is_their_union_and_appears_when_all_are_in(
    ranked: dict[str, Any],
) -> None:
    found = ranked["lax"]
    assert found["error"] == ""
    assert found["nodes"] == ["w1", "w2"]
    assert len(found["names"]) == STEPS["lax"]
    assert found["shards"] == [True] * STEPS["lax"] * RANKS_COUNT
    assert found["manifests"] == STEPS["lax"]
    ranks = range(RANKS_COUNT)
    whole = [*(f"node_{r}" for r in ranks), *(f"shard_{r}.bin" for r in ranks)]
    whole = sorted([*whole, "common.json", "late.txt"])
    assert [name for name in found["tree"] if not name.startswith(".")] == whole
    assert [name for name in found["seen_names"] if not name.startswith(".")] == whole
    (late_s,) = found["late_s"]
    assert found["seen_s"] > late_s


@pytest.mark.lowest_slow
def test_where_ranks_disagree_the_lowest_wins_every_time_and_a_warning_names_both(
    ranked: dict[str, Any],
) -> None:
    found = ranked["lax"]
    assert found["common"] == ["all"] * STEPS["lax"]
    differing = found["names"][AGREES["lax"] :]
    assert len(found["warnings"]) == len(differing)
    for name, warning in zip(differing, sorted(found["warnings"], key=place), strict=True):
        what = f"ranks 0 and {DISAGREES} report different bytes for common.json"
        assert f"/{name}: {what}" in warning


def test_where_ranks_disagree_strict_is_an_error_that_names_both(
    ranked: dict[str, Any],
) -> None:
    found = ranked["strict"]
    assert f"ranks 0 and {DISAGREES} report different bytes for 'common.json'" in found["error"]
    assert found["names"] == []
    assert found["manifests"] == 0


def test_a_trainer_inside_a_trial_inherits_its_syncing(cluster: Cluster) -> None:
    found = cluster.drive("head", "tests/hosts/drivers/inner.py")
    assert found["errors"] == []
    metrics = found["metrics"]
    assert (metrics["step"], metrics["node"]) == (1, "w1")
    assert {text.split()[1] for text in metrics["parts"].values()} == {"w1", "w2"}
    assert found["at_home"] == metrics["parts"]
    assert metrics["path"].startswith("/srv/home/ray_results/outer/")
    ours = [path for path in cluster.tree("head", "~/ray_results/outer") if ".tune_sync" in path]
    assert len([path for path in ours if "/.tune_sync/manifests/checkpoint_" in path]) == 2, ours
