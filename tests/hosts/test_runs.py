"""Whole searches on hosts that share nothing, with a HOME of its own name on each host."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.bed import Cluster, tree_digest
from tests.bed.ray_node import REPOSITORY
from tests.hosts.searches import (
    DRIVERS,
    assert_sound,
    nodes,
    reported_digests,
    saved_digests,
    search,
    stored_digests,
)

pytestmark = pytest.mark.hosts

HOMES = {"head": "/srv/alice", "w1": "/srv/bob", "w2": "/srv/carol", "laptop": "/srv/dave"}
INTERVAL_S = 0.2


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """The laptop is in no cluster."""
    with Cluster(
        worker_count=2, worker_cpus=2, head_cpus=1, bare_hosts=["laptop"], homes=HOMES
    ) as running:
        yield running


def assert_only_own_home(cluster: Cluster, name: str) -> None:
    """Nothing was made under another host's HOME, and no results are left on a worker."""
    own = HOMES[name].removeprefix("/srv/")
    assert cluster.exec(name, ["ls", "/srv"]).stdout.split() == [own]
    assert not [path for path in cluster.tree(name, "~") if "ray_results" in path]


@pytest.mark.lowest
def test_every_checkpoint_of_every_worker_is_on_the_drivers_host(cluster: Cluster) -> None:
    trials = [
        {"host": host, "blob_bytes": 5 << 20, "ours": ours}
        for host in ("w1", "w2")
        for ours in (False, True)
    ]
    found = search(cluster, name="plain", trials=trials)
    assert found["errors"] == []
    assert found["path"] == "/srv/alice/ray_results/plain"
    assert_sound(found)
    for trial in found["trials"]:
        assert nodes(trial) == {trial["settings"]["host"]}
        assert set(stored_digests(trial)) == {0, 1, 2}
        assert stored_digests(trial) == reported_digests(trial)
        assert sorted(trial["checkpoints"]) == [f"checkpoint_{i:06d}" for i in range(3)]
        assert trial["opened"]["step"] == 2
    for name in ("w1", "w2"):
        assert_only_own_home(cluster, name)


def test_results_open_through_ray_client_and_from_a_copy_without_a_cluster(
    cluster: Cluster,
) -> None:
    trials = [{"host": "w1"}, {"host": "w2", "blob_bytes": 5 << 20, "file_count": 20}]
    spec = {"name": "client", "storage_path": "/srv/alice/results", "trials": trials}
    arguments = ["ray://head:10001", json.dumps(spec), "/srv/dave/best"]
    found = cluster.drive("laptop", DRIVERS / "through_client.py", arguments)
    assert (found["driver"], found["errors"]) == ("laptop", [])
    assert not found["path_is_here"]
    assert found["best"]["node"] == "w2"
    assert found["digest"] == found["best"]["digest"]
    assert found["state"]["step"] == 2
    assert found["left"] == ["best"]

    results = cluster.host("head").path("/srv/alice/results/client")
    shutil.copytree(results, cluster.host("laptop").path("/srv/dave/copy"))
    copy = cluster.drive(
        "laptop", DRIVERS / "read_copy.py", ["/srv/dave/copy"], env={"RAY_ADDRESS": ""}
    )
    assert not copy["ray_is_running"]
    assert copy["best"] == {"state": found["state"], "digest": found["digest"]}
    assert_sound(copy)
    for trial in copy["trials"]:
        assert stored_digests(trial) == reported_digests(trial)
        assert trial["opened"]["step"] == 2


def exploit(cluster: Cluster, name: str) -> dict[str, Any]:
    """A population whose first two trials take over from the better two, on another host."""
    trials = [{"steps": 4, "host": host} for host in ("w1", "w1", "w2", "w2")]
    every = {"checkpoint_frequency": 2}
    found = search(cluster, name=name, trainable="TrainN", trials=trials, pbt=2, checkpoint=every)
    assert found["errors"] == []
    assert_sound(found)
    assert any(
        c["parent"] not in (None, trial["id"])
        for trial in found["trials"]
        for c in trial["checkpoints"].values()
    )
    return found


@pytest.mark.lowest
def test_an_exploiting_trial_loads_from_another_host_and_stores_as_itself(
    cluster: Cluster,
) -> None:
    found = exploit(cluster, "pbt")
    took_over = [
        (trial["id"], row)
        for trial in found["trials"]
        for row in trial["reported"]
        if row["loaded_from"] and row["parent"] != trial["id"]
    ]
    assert took_over
    for trial_id, row in took_over:
        assert (row["loaded_from"].split(":")[0], trial_id[-1] in "01") == ("w1", True)
        assert row["parent"][-1] in "23"
    for trial in found["trials"]:  # whatever is stored is what the trial itself saved
        assert stored_digests(trial).items() <= saved_digests(cluster, trial["id"]).items()


def test_every_save_of_a_population_stays_stored(cluster: Cluster) -> None:
    found = exploit(cluster, "pbt-all")
    digests = {trial["id"]: stored_digests(trial) for trial in found["trials"]}
    exploited = 0
    for trial in found["trials"]:
        assert digests[trial["id"]] == saved_digests(cluster, trial["id"])
        for row in trial["reported"]:
            if not row["loaded_from"]:
                continue
            host, digest = row["loaded_from"].split(":")
            assert digest in digests[row["parent"]].values()
            if row["parent"] != trial["id"]:
                assert (host, trial["id"][-1] in "01", row["parent"][-1] in "23") == (
                    "w1", True, True,
                )  # fmt: skip
                exploited += 1
    assert exploited


def test_reports_faster_than_the_cable_are_all_stored_or_the_newest_that_are_kept(
    cluster: Cluster,
) -> None:
    trial = {"steps": 10, "blob_bytes": 1 << 20, "pause_s": INTERVAL_S, "host": "w1"}
    specs = [
        {"name": "keep_all", "trials": [trial]},
        {"name": "keep_two", "trials": [trial], "checkpoint": {"num_to_keep": 2}},
    ]
    cluster.slow("w1", rate_mbit=24)
    try:
        found = cluster.drive("head", DRIVERS / "at_once.py", [json.dumps(specs)])
    finally:
        cluster.fast("w1")
    for run, steps in zip(found["runs"], (range(10), (8, 9)), strict=True):
        assert run["errors"] == []
        assert_sound(run)
        (only,) = run["trials"]
        assert nodes(only) == {"w1"}
        assert max(row.get("took_s", 0) for row in only["reported"]) > INTERVAL_S
        taken = reported_digests(only)
        assert set(taken) == set(range(10))
        assert stored_digests(only) == {step: taken[step] for step in steps}


def test_two_drivers_at_once_keep_to_themselves(cluster: Cluster) -> None:
    """One deletes old checkpoints and syncs artifacts; the other takes all ways to set us up."""
    with ThreadPoolExecutor(2) as pool:
        keeping = pool.submit(run_that_keeps_two, cluster)
        settings = json.dumps([{"host": "w1"}, {"host": "w2", "fail_at": 2}])
        others = pool.submit(cluster.drive, "head", DRIVERS / "by_kwargs.py", [settings])
        assert_kept_two(cluster, keeping.result())
        assert_set_up_by_kwargs(others.result())


def run_that_keeps_two(cluster: Cluster) -> dict[str, Any]:
    trials = [{"steps": 10, "artifact_bytes": 64, "host": host} for host in ("head", "w1", "w2")]
    return search(
        cluster,
        name="keep",
        trials=trials,
        checkpoint={"num_to_keep": 2},
        sync={"sync_artifacts": True, "sync_period": 0.1},
    )


def assert_kept_two(cluster: Cluster, found: dict[str, Any]) -> None:
    assert found["errors"] == []
    assert_sound(found)
    for trial in found["trials"]:
        assert nodes(trial) == {trial["settings"]["host"]}
        assert list(trial["checkpoints"]) == ["checkpoint_000008", "checkpoint_000009"]
        taken = reported_digests(trial)
        assert stored_digests(trial) == {8: taken[8], 9: taken[9]}
        assert trial["artifacts"] == sorted(f"artifact_{step}.bin" for step in range(10))
    for name in ("w1", "w2"):
        results_of_demos = ["-path", f"{REPOSITORY}/*", "-prune", "-o"]
        find = ["find", "/srv", "/tmp", "/dev/shm", *results_of_demos]
        find += ["-name", "checkpoint_0*", "-print"]
        assert cluster.exec(name, find).stdout == ""
    before = tree_digest(cluster.host("head").path(found["path"]))
    search(cluster, name="keep", restore=found["path"])  # a restore of a finished run
    after = tree_digest(cluster.host("head").path(found["path"]))
    assert {path for path in after if "checkpoint_" in path} == {
        path for path in before if "checkpoint_" in path
    }


def assert_set_up_by_kwargs(found: dict[str, Any]) -> None:
    for run in found.values():
        assert_sound(run)
        assert [nodes(trial) for trial in run["trials"]] == [{"w1"}, {"w2"}]
    for run, steps in (("failed", 2), ("resumed", 3), ("by_config", 2)):
        fine, failing = found[run]["trials"]
        assert set(stored_digests(fine)) == {0, 1, 2}
        assert set(stored_digests(failing)) == set(range(steps))
        assert failing["checkpoints"]["checkpoint_000000"]["step"] == 0
    assert [len(found[run]["errors"]) for run in ("failed", "resumed", "by_config")] == [1, 0, 1]
    first, again = (found[run]["trials"][1]["checkpoints"] for run in ("failed", "resumed"))
    assert first.items() <= again.items()
