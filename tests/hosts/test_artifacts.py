"""Files that trials write into their trial directory reach the driver's node, as asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.bed import Cluster
from tests.hosts.drivers.artifacts import DUE, PAUSE_S, PERIOD_REPORTS

pytestmark = pytest.mark.hosts

SCRIPT = "tests/hosts/drivers/artifacts.py"
ON = {"sync_artifacts": True}
PERIOD = PAUSE_S * PERIOD_REPORTS
RUNS = [
    {"name": "on", "trial": "plots", "sync": ON},
    {"name": "off", "trial": "plots", "sync": {}},
    {"name": "all", "trial": "with_checkpoints", "sync": ON},
    {
        "name": "some",
        "trial": "with_checkpoints",
        "sync": {**ON, "include": ["*.png", "model.txt"], "exclude": ["cache", "*.cache"]},
    },
    {"name": "period", "trial": "no_checkpoints", "sync": {**ON, "sync_period": PERIOD}},
]


@pytest.fixture(scope="module")
def runs(cluster: Cluster) -> dict[str, Any]:
    """All runs, of one driver; each trial was on a worker."""
    found = cluster.drive("head", SCRIPT, [json.dumps(RUNS)], timeout_s=200)
    assert found["home"] == "head"
    assert {run["host"] for run in found["runs"].values()} == {"w1"}
    return dict(found["runs"])


def wanted(run: dict[str, Any], *temporary: str) -> dict[str, str]:
    return {name: digest for name, digest in run["made"].items() if name not in temporary}


TEMPORARY = (
    "checkpoint_tmp1a2b/half", ".tmp_model", "tmp1234.tmp", "save_to_object_x", "model.lock",
    "out/half.tmp",
)  # fmt: skip


@pytest.mark.lowest
def test_every_file_of_every_report_and_after_the_last_arrives(runs: dict[str, Any]) -> None:
    run = runs["on"]
    expected = {f"out/plot_{number}.png" for number in range(10)} | {"final.json", "steps.log"}
    assert set(wanted(run, *TEMPORARY)) == expected
    assert run["at_home"] == wanted(run, *TEMPORARY)


def test_names_of_files_in_the_making_stay_away(runs: dict[str, Any]) -> None:
    assert set(TEMPORARY) < set(runs["on"]["made"])
    assert set(TEMPORARY).isdisjoint(runs["on"]["at_home"])


def test_only_the_bytes_of_the_files_themselves_travel(runs: dict[str, Any]) -> None:
    sent_bytes = [int(size) for size in runs["on"]["sent"]]
    plots = {3000 + number for number in range(10)}
    assert plots <= set(sent_bytes), "each plot travels"
    assert len([size for size in sent_bytes if size in plots]) == 10, "and travels once"
    assert 5000 not in sent_bytes
    assert sum(sent_bytes) < sum(plots) + 10 * 20 + 20  # the growing log, and the last file


def test_no_artifact_arrives_when_they_are_not_asked_for(runs: dict[str, Any]) -> None:
    assert runs["off"]["made"]
    assert runs["off"]["at_home"] == {}
    assert runs["off"]["sent"] == []


def test_patterns_choose_artifacts_and_thin_out_checkpoints(runs: dict[str, Any]) -> None:
    def names(run: dict[str, Any], inside: bool) -> set[str]:
        return {n for n in run["at_home"] if n.startswith("checkpoint_") == inside}

    steps = [f"checkpoint_00000{step}" for step in range(2)]
    artifacts = {"keep/a.png", "keep/b.txt", "cache/c.png", "top.png", "top.txt"}
    assert names(runs["all"], False) == artifacts
    files = ("model.pt", "model.txt", "cache/c.bin", "optimizer.cache")
    assert names(runs["all"], True) == {f"{step}/{file}" for step in steps for file in files}
    assert names(runs["some"], False) == {"keep/a.png", "top.png"}
    kept = ("model.pt", "model.txt")  # `include` is about artifacts: a checkpoint stays whole
    assert names(runs["some"], True) == {f"{step}/{file}" for step in steps for file in kept}


def test_the_period_holds_without_checkpoints(runs: dict[str, Any]) -> None:
    run = runs["period"]
    assert run["at_home"] == run["made"]
    assert len(run["made"]) == 20
    # It went on only as each lot of them had come: they did not come all at the end.
    assert run["more"] <= len(DUE)


@pytest.mark.parametrize("changes_directory", ["1", "0"])
def test_artifacts_are_what_is_in_the_trial_directory_wherever_the_process_works(
    cluster: Cluster, changes_directory: str
) -> None:
    name = f"chdir{changes_directory}"
    found = cluster.drive(
        "head",
        SCRIPT,
        [json.dumps([{"name": name, "trial": "Relative", "sync": ON}])],
        env={"RAY_CHDIR_TO_TRIAL_DIR": changes_directory},
    )
    run = found["runs"][name]
    assert run["host"] == "w1"
    assert (run["cwd"] == run["made_in"]) == (changes_directory == "1")
    assert "abs.txt" in run["at_home"]
    assert ("inside/rel.txt" in run["at_home"]) == (changes_directory == "1")
    warned = [line for line in run["said"] if "RAY_CHDIR_TO_TRIAL_DIR" in line]
    assert len(warned) == (changes_directory == "0"), run["said"]
