"""A search whose driver is on a plain node of the cluster, without token authentication."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
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

pytestmark = pytest.mark.hosts

TRIAL_COUNT = 16


def test_all_is_on_the_drivers_host_when_fit_returns_and_the_workers_die_at_once(
    fresh_cluster: Callable[..., Cluster],
) -> None:
    cluster = fresh_cluster(
        worker_cpus=2, driver_host=True, auth="disabled", homes={"driver": "/srv/eve"}
    )
    home = cluster.host("driver").path("/srv/eve")
    for name in cluster.workers:
        cluster.slow(name, delay_ms=20, rate_mbit=40)
    trial = {"steps": 3, "checkpoint_every": 3, "blob_bytes": 1 << 20}
    on_each = [trial | {"host": name} for name in cluster.workers]  # else one may be slow to start
    spec = {"name": "last", "trials": on_each * (TRIAL_COUNT // 2), "reuse_actors": True}
    arguments = [json.dumps(spec), "/srv/eve/ended", "/srv/eve/go_on"]
    with ThreadPoolExecutor(1) as pool:
        driver = pool.submit(cluster.drive, "driver", DRIVERS / "ended.py", arguments)
        kill_when_ended(cluster, driver, home)
        found = driver.result()

    assert (found["driver"], found["errors"]) == ("driver", [])
    assert found["path"] == "/srv/eve/ray_results/last"
    assert_sound(found)
    assert len(found["trials"]) == TRIAL_COUNT
    for trial in found["trials"]:
        assert stored_digests(trial) == reported_digests(trial)
        assert set(stored_digests(trial)) == {2}
    assert set.union(*map(nodes, found["trials"])) == {"w1", "w2"}
    assert not [path for path in cluster.tree("head", "~") if "ray_results" in path]


def kill_when_ended(cluster: Cluster, driver: Future[dict[str, Any]], home: Path) -> None:
    try:
        wait_for(lambda: (home / "ended").exists() or driver.done(), "fit() to return")
        for name in cluster.workers:
            cluster.kill(name)
        time.sleep(1)
    finally:
        (home / "go_on").touch()
