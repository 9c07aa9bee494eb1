"""Results in a directory that all hosts see, through mounts with the manners of network ones.

What a host does is seen by the others late, nothing can be made durable, there are no hard links.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.bed import Cluster
from tests.hosts.searches import (
    DRIVERS,
    assert_sound,
    nodes,
    reported_digests,
    stored_digests,
    wait_for,
)
from tests.weakfs import Weakness, weak_mount

pytestmark = pytest.mark.hosts

SHARED = "/srv/results"
HOSTS = ("head", "w1", "w2")
MANNERS = Weakness(delay_s=0.4, no_fsync=True, no_links=True, held_open=True)


@pytest.fixture(scope="module")
def backing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all hosts see, as the machine sees it."""
    return tmp_path_factory.mktemp("backing")


@pytest.fixture(scope="module")
def cluster(backing: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Each host has a mount of its own, as it would have of a file server."""
    points = tmp_path_factory.mktemp("mounts")
    with ExitStack() as stack:
        mounts = {
            host: {SHARED: stack.enter_context(weak_mount(backing, points / host, MANNERS))}
            for host in HOSTS
        }
        yield stack.enter_context(Cluster(worker_count=2, worker_cpus=2, mounts=mounts))


def search(cluster: Cluster, host: str = "head", **spec: Any) -> dict[str, Any]:
    spec.setdefault("sync", {"upload_dir": SHARED})
    return cluster.drive(host, DRIVERS / "shared.py", [json.dumps(spec)])


def test_trials_go_on_on_the_other_worker_from_what_the_killed_one_stored(
    cluster: Cluster, backing: Path
) -> None:
    spec = {
        "name": "exp",
        "trials": [{"steps": 4, "told_at": 3, "file_count": 5}] * 2,
        "checkpoint": {"num_to_keep": 1},
        "max_failures": 2,
    }
    with ThreadPoolExecutor(1) as pool:
        driver = pool.submit(search, cluster, **spec)
        manifests = backing / "exp/.tune_sync/manifests"
        wait_for(
            lambda: driver.done() or len({m.parent for m in manifests.glob("*/*.json")}) == 2,
            "a checkpoint of each trial",
        )
        cluster.kill("w1")
        cluster.exec("w2", ["touch", "go_on"])
        found = driver.result()
    cluster.start("w1")
    assert (found["path"], found["errors"]) == (f"{SHARED}/exp", [])
    assert_sound(found)
    assert "w2" in set.union(*map(nodes, found["trials"]))
    for trial in found["trials"]:
        assert set(trial["checkpoints"]) == {max(trial["checkpoints"])}
        assert stored_digests(trial).items() <= reported_digests(trial).items()
    assert any(row["resumed_at"] for trial in found["trials"] for row in trial["reported"])


def test_another_host_restores_and_goes_on(cluster: Cluster) -> None:
    trials = [{"steps": 4, "fail_at": 2, "host": host} for host in ("w1", "w2")]
    first = search(cluster, name="again", trials=trials)
    assert len(first["errors"]) == 2
    found = search(cluster, "w2", name="again", restore=f"{SHARED}/again")
    assert (found["driver"], found["errors"]) == ("w2", [])
    assert_sound(found)
    for trial in found["trials"]:
        assert trial["reported"][-1]["step"] == 3
        assert trial["reported"][-1]["resumed_at"] == 2
        assert stored_digests(trial) == reported_digests(trial)


def test_without_a_syncer_the_storage_path_is_shared_and_another_host_restores(
    cluster: Cluster,
) -> None:
    trials = [{"steps": 4, "fail_at": 2, "host": host} for host in ("w1", "w2")]
    asked = {"storage_path": SHARED, "sync": {"syncer": None}}
    first = search(cluster, name="none", trials=trials, **asked)
    assert len(first["errors"]) == 2
    found = search(cluster, "w2", name="none", restore=f"{SHARED}/none", **asked)
    assert (found["driver"], found["errors"]) == ("w2", [])
    assert found["path"] == f"{SHARED}/none"
    assert_sound(found)
    for trial in found["trials"]:
        assert trial["reported"][-1]["resumed_at"] == 2
        assert stored_digests(trial) == reported_digests(trial)


@pytest.fixture(scope="module")
def badly_mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The head has the directory, w1 has none, w2 has another one there."""
    places = [tmp_path_factory.mktemp(name) for name in ("right", "other")]
    mounts = {"head": {SHARED: places[0]}, "w2": {SHARED: places[1]}}
    with Cluster(worker_count=2, mounts=mounts) as running:
        yield running


def test_hosts_that_do_not_share_the_path_are_named_before_training(
    badly_mounted: Cluster,
) -> None:
    found = search(badly_mounted, name="exp", trials=[{"steps": 1}])
    assert found["refused"].startswith(f"NotSharedError: {SHARED}/exp is not shared by all nodes.")
    for name in ("w1", "w2"):
        assert badly_mounted.addresses[name] in found["refused"]
    assert badly_mounted.addresses["head"] not in found["refused"]  # has no CPUs: runs no trials
    assert f"there is no directory {SHARED}" in found["refused"]
    assert f"there is no directory {SHARED}/exp" in found["refused"]
    home = badly_mounted.host("head").path(f"{SHARED}/exp")
    assert not [path for path in home.rglob("*") if path.name.startswith(("probe-", "train_n"))]


def test_a_host_that_joins_later_is_looked_at_when_a_trial_starts_there(
    badly_mounted: Cluster,
) -> None:
    for name in ("w1", "w2"):
        badly_mounted.kill(name)
    for name in ("w1", "w2"):
        badly_mounted.wait_dead(name)
    trials = [{"steps": 1, "host": "w1", "start_pause_s": 600}]
    with ThreadPoolExecutor(1) as pool:
        driver = pool.submit(search, badly_mounted, name="late", trials=trials)
        lease = badly_mounted.host("head").path(f"{SHARED}/late/.tune_sync/lease.json")
        wait_for(lambda: driver.done() or lease.exists(), "the run to start")
        badly_mounted.start("w1")
        found = driver.result()
    (error,) = found["errors"]
    assert "NotSharedError" in error
    assert f"{SHARED}/late/.tune_sync is not visible on node" in error
    assert badly_mounted.addresses["w1"] in error
    assert 'SyncConfig(syncer="auto")' in error
