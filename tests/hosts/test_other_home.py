"""The driver was killed, and its experiment is restored where another Ray node is its home."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bed import Cluster
from tests.bed.driver import driver_argv
from tests.bed.errors import DriverError
from tests.bed.host import send
from tests.hosts.drivers.trainables import GO_ON
from tests.hosts.searches import DRIVERS, assert_sound, search, stored_digests, wait_for
from tests.hosts.test_behind import published, sealed_at_home, staged_on
from tune_sync.homes.lease import LEASE_TTL_S

pytestmark = [pytest.mark.hosts, pytest.mark.slow]

EXPERIMENT = "/srv/home/ray_results/x"
FAST_MBIT, SLOW_MBIT = 20, 2
# The second of two checkpoints, ten megabytes each, is under way for long.
TRIAL = {"host": "w1", "steps": 4, "told_at": 1, "hold_at": 2}
TRIAL |= {"file_count": 8, "file_bytes": 1_300_000}
STAGED = {"wait_for": "staged"}


def killed_driver(cluster: Cluster, host: str, sync: dict[str, Any]) -> subprocess.Popen[str]:
    """A driver to be killed; if `sync` stages, the second checkpoint is whole on w1 alone."""
    cluster.slow("w1", rate_mbit=FAST_MBIT)
    spec = {"name": "x", "trials": [TRIAL], "sync": sync}
    argv = driver_argv(
        cluster.host(host), cluster.python, DRIVERS / "search.py", [json.dumps(spec)]
    )
    silent = subprocess.DEVNULL
    env = {"TUNE_GLOBAL_CHECKPOINT_S": "0.3"}
    process = cluster.popen(host, argv, env, stdout=silent, stderr=silent)
    root = cluster.host(host).path(EXPERIMENT)
    first, second = "checkpoint_000000", "checkpoint_000001"
    wait_for(lambda: first in published(root), "a checkpoint to be published")
    if sync:
        cluster.slow("w1", rate_mbit=SLOW_MBIT)
    cluster.exec("w1", ["touch", GO_ON])
    if sync:
        wait_for(lambda: second in staged_on(cluster, "w1"), "another one to be staged")
    else:
        wait_for(lambda: second in published(root), "another one to be published")
    wait_for(lambda: any(root.glob("experiment_state-*.json")), "state to restore from")
    assert bool(sync) != (second in sealed_at_home(root)), "nothing would be lost"
    return process


def let_run_out(root: Path) -> None:
    """As if the driver had been killed so much earlier."""
    lease = root / ".tune_sync/lease.json"
    held = json.loads(lease.read_text())
    for sign in ("heartbeat_s", "heartbeat_up_s"):
        held[sign] -= LEASE_TTL_S
    lease.write_text(json.dumps(held))


def owners(root: Path) -> dict[str, str]:
    """Checkpoint -> the run that published it."""
    manifests = root.glob(".tune_sync/manifests/*/*.json")
    return {path.stem: json.loads(path.read_text())["owner"] for path in manifests}


def assert_went_on(found: dict[str, Any]) -> None:
    """All steps are there, and what was reported to the killed driver was not done again."""
    assert found["errors"] == []
    assert_sound(found)
    (trial,) = found["trials"]
    assert set(stored_digests(trial)) == {0, 1, 2, 3}
    parents = {state["step"]: state["parent"] for state in trial["checkpoints"].values()}
    assert parents == {0: None, 1: None, 2: trial["id"], 3: trial["id"]}
    assert trial["reported"][-1]["resumed_at"] == 2


@pytest.mark.parametrize("sync", [pytest.param({}, id="stored"), pytest.param(STAGED, id="staged")])
def test_a_killed_drivers_lease_is_another_hosts_after_its_time_with_all_that_was_reported(
    fresh_cluster: Callable[..., Cluster], sync: dict[str, Any]
) -> None:
    cluster = fresh_cluster(worker_count=2)
    process = killed_driver(cluster, "head", sync)
    send(process, signal.SIGKILL)
    process.wait()
    old, new = (cluster.host(name).path(EXPERIMENT) for name in ("head", "w2"))
    shutil.copytree(old, new, symlinks=True)
    assert bool(sync) != ("checkpoint_000001" in sealed_at_home(new)), "nothing would be lost"
    before = owners(new)

    with pytest.raises(DriverError) as refusal:
        search(cluster, "w2", name="x", restore=EXPERIMENT)
    for part in ("LeaseHeldError", "process ", "on host head", "s ago"):
        assert part in refusal.value.output
    left = re.search(r"if it is dead, wait (\d+) s", refusal.value.output)
    assert left and 0 < int(left[1]) <= LEASE_TTL_S
    assert owners(new) == before

    for root in (old, new):
        let_run_out(root)
    cluster.fast("w1")
    found = search(cluster, "w2", name="x", restore=EXPERIMENT)
    assert found["driver"] == "w2"
    assert_went_on(found)
    after = owners(new)
    assert before.items() <= after.items()
    assert len(set(before.values())) == 1
    assert len(set(after.values())) == 2


def test_what_was_staged_arrives_when_the_drivers_host_is_a_new_node_of_the_same_cluster(
    fresh_cluster: Callable[..., Cluster],
) -> None:
    cluster = fresh_cluster(worker_count=1, driver_host=True, keep_homes=("driver",))
    process = killed_driver(cluster, "driver", STAGED)
    cluster.kill("driver")
    process.wait()
    cluster.wait_dead("driver")
    cluster.start("driver")
    let_run_out(cluster.host("driver").path(EXPERIMENT))
    cluster.fast("w1")
    assert_went_on(search(cluster, "driver", name="x", restore=EXPERIMENT))
    wait_for(lambda: staged_on(cluster, "w1") == [], "nothing to be left on the worker")
