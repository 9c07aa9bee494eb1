"""Write-behind on isolated hosts: reports return when staged, and what dies meanwhile.

Cables of workers are so slow that checkpoints are under way for seconds, behind the training.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed import Cluster
from tests.bed.errors import DriverError
from tests.bed.host import send
from tests.hosts.drivers.trainables import GO_ON
from tests.hosts.searches import (
    DRIVERS,
    assert_sound,
    newest_output,
    nodes,
    search,
    stored_digests,
    wait_for,
)
from tests.hosts.test_faults import RESULTS, another, experiment, searching, start_driver

pytestmark = pytest.mark.hosts

FILE_BYTES = 1_300_000  # more than what travels in batches
SETTINGS = {"file_count": 8, "file_bytes": FILE_BYTES}
TRAVEL_S = 2.0  # at least, for one checkpoint
RATE_MBIT = 40
STAGED = {"wait_for": "staged"}
AGENTS = ["pgrep", "-f", "^ray::NodeAgent"]


@pytest.fixture(scope="module")
def whole_cluster() -> Iterator[Cluster]:
    with Cluster(worker_count=2, worker_cpus=1) as running:
        yield running


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Cluster:
    """Both workers alive, on slow cables."""
    whole_cluster.start(*whole_cluster.workers)
    for name in whole_cluster.workers:
        whole_cluster.slow(name, rate_mbit=RATE_MBIT)
    return whole_cluster


def staged_on(cluster: Cluster, host: str, staging: str = "/tmp/tune_sync-*") -> list[str]:
    """Checkpoints in the staging directory of a host, sealed."""
    inside = f"{staging[1:]}/*/*/.tune_sync/staging/*/*/*/seal.json"
    seals = cluster.host(host).path("/").glob(inside)
    return sorted(seal.parts[-3] for seal in seals)


def published(root: Path) -> list[str]:
    return sorted(path.stem for path in root.glob(".tune_sync/manifests/*/*.json"))


def agents(cluster: Cluster, host: str) -> list[str]:
    return cluster.exec(host, AGENTS, check=False).stdout.split()


def assert_stored(trial: dict[str, Any], steps: int) -> None:
    """All steps are there as they were last reported."""
    last = {row["step"]: row["digest"] for row in trial["reported"]}
    assert stored_digests(trial) == last
    assert sorted(last) == list(range(steps))


@pytest.mark.lowest
def test_reports_do_not_wait_for_the_cable_and_all_is_home_at_the_end(cluster: Cluster) -> None:
    trials = [{**SETTINGS, "host": "w1", "steps": 5}, {**SETTINGS, "host": "w2", "steps": 5}]
    for name in cluster.workers:  # far longer than a busy machine needs to stage one
        cluster.slow(name, rate_mbit=RATE_MBIT / 2)
    found = search(cluster, name="cable", sync=STAGED, trials=trials)
    assert found["errors"] == []
    assert_sound(found)
    for trial in found["trials"]:
        assert_stored(trial, 5)
        took_s = sorted(row["took_s"] for row in trial["reported"])
        assert took_s[len(took_s) // 2] < 2 * TRAVEL_S, took_s
    for name in cluster.workers:
        wait_for(lambda name=name: not agents(cluster, name), "the agents to end")  # type: ignore[misc]
        assert staged_on(cluster, name) == []


def test_a_full_staging_disk_sends_reports_to_their_destination(cluster: Cluster) -> None:
    cluster.small_disk("w1", "/srv/staging", 2 * FILE_BYTES)
    trials = [{"file_count": 4, "file_bytes": FILE_BYTES, "host": "w1", "steps": 2}]
    sync = {**STAGED, "staging_dir": "/srv/staging"}
    found = search(cluster, name="full", sync=sync, trials=trials)
    cluster.unmount("w1", "/srv/staging")
    assert found["errors"] == []
    assert_sound(found)
    assert_stored(found["trials"][0], 2)


@pytest.mark.slow
def test_only_the_newest_of_each_trial_travels_and_one_at_a_time(cluster: Cluster) -> None:
    root = experiment(cluster, "period")
    limits = {"sync_on_checkpoint": False, "sync_period": 5, "max_concurrent_transfers": 1}
    common = {**SETTINGS, "steps": 40, "pause_s": 0.5}
    trials = [{**common, "host": "w1"}, {**common, "host": "w2"}]
    most = 0
    with searching(cluster, name="period", sync={**STAGED, **limits}, trials=trials) as running:
        while not running.done():
            most = max(most, len(arriving(root)))
            time.sleep(0.02)
    found = running.result()
    assert found["errors"] == []
    assert_sound(found)
    assert most == 1
    for trial in found["trials"]:
        last = {row["step"]: row["digest"] for row in trial["reported"]}
        stored = stored_digests(trial)
        assert stored.items() <= last.items()
        assert max(stored) == 39
        assert 3 <= len(stored) <= 12


@pytest.mark.slow
def test_a_node_puts_no_more_on_its_cable_than_it_may(cluster: Cluster) -> None:
    root, limit = experiment(cluster, "limit"), 3_000_000
    cluster.fast("w1")
    sync = {**STAGED, "max_bandwidth_bytes_per_s": limit}
    trials = [{**SETTINGS, "host": "w1", "steps": 5}]
    sent: list[tuple[float, int]] = []  # from when the first one is on its way
    with searching(cluster, name="limit", sync=sync, trials=trials) as running:
        wait_for(lambda: bool(arriving(root)), "the first one to be sent")
        while len(published(root)) < 5 and not running.done():
            sent.append((time.monotonic(), sent_bytes(cluster, "w1")))
            time.sleep(0.05)
    found = running.result()
    assert found["errors"] == []
    assert_sound(found)
    took_s, whole = (last - first for first, last in zip(sent[0], sent[-1], strict=True))
    assert whole > 4 * SETTINGS["file_count"] * FILE_BYTES, "it was not seen from its begin"
    assert 0.5 * limit < whole / took_s < 1.2 * limit, (whole, took_s)


def sent_bytes(cluster: Cluster, host: str) -> int:
    """What has left a host by its cable, all told."""
    lines = Path(f"/proc/{cluster.host(host).pid}/net/dev").read_text().splitlines()
    (cable,) = [line for line in lines if line.strip().startswith("e0:")]
    return int(cable.partition(":")[2].split()[8])


def arriving(root: Path) -> list[Path]:
    """Attempts that are being written at home."""
    attempts = root.glob(".tune_sync/staging/*/*/*")
    return [path for path in attempts if path.is_dir() and not (path / "seal.json").exists()]


def test_any_host_is_told_what_is_staged_on_another_one(cluster: Cluster) -> None:
    cluster.fast("w1")  # a full cable would keep the answer back, and Ray's signs of life
    sync = {**STAGED, "max_bandwidth_bytes_per_s": 80_000}
    size = {"file_count": SETTINGS["file_count"], "file_bytes": 50_000}
    trials = [{**size, "host": "w1", "steps": 8, "told_at": 7}]
    with searching(cluster, name="status", sync=sync, trials=trials) as running:
        wait_for(lambda: len(staged_on(cluster, "w1")) >= 4, "some to be staged")
        status = cluster.drive("w2", DRIVERS / "status.py", ["status"])
        cluster.exec("w1", ["touch", GO_ON])
    assert running.result()["errors"] == []
    assert (status["where"], status["is_running"]) == (f"{RESULTS}/status", True)
    assert status["driver"].startswith("process ")
    assert " on host head, " in status["driver"]
    (node,) = status["nodes"]
    assert node["host"] == cluster.addresses["w1"]
    # What was published just now is there too until its node has heard of that.
    assert 0 < node["staged_count"] <= min(7, 8 - status["stored_count"])
    assert node["staged_bytes"] > node["staged_count"] * size["file_count"] * size["file_bytes"]
    assert node["oldest_unstored_s"] > 0
    assert (node["failed_count"], node["error"], status["failed"]) == (0, "", {})


@pytest.mark.slow
def test_a_killed_agent_comes_back_and_sends_what_is_on_the_disk(cluster: Cluster) -> None:
    root = experiment(cluster, "agent")
    trials = [{**SETTINGS, "host": "w1", "steps": 4}]
    with searching(cluster, name="agent", sync=STAGED, trials=trials) as running:
        wait_for(lambda: len(staged_on(cluster, "w1")) == 4, "all to be staged")
        wait_for(lambda: bool(agents(cluster, "w1")), "the agent, for which no report waits")
        assert len(published(root)) < 3
        (agent,) = agents(cluster, "w1")
        cluster.exec("w1", ["kill", "-KILL", agent])
        wait_for(lambda: another(cluster, AGENTS, agent, "w1") or running.done(), "another agent")
    found = running.result()
    assert found["errors"] == []
    assert_sound(found)
    assert_stored(found["trials"][0], 4)


@pytest.mark.slow
def test_a_host_that_dies_with_staged_checkpoints_costs_only_those(cluster: Cluster) -> None:
    root = experiment(cluster, "host")
    trials = [{**SETTINGS, "steps": 40, "pause_s": 0.5}]
    with searching(cluster, name="host", sync=STAGED, trials=trials, max_failures=3) as running:
        wait_for(lambda: len(published(root)) >= 2, "some to be published")
        (state,) = root.glob("*/checkpoint_000000/state.json")
        host = json.loads(state.read_text())["node"]
        before = published(root)
        assert set(staged_on(cluster, host)) - set(before), "nothing would be lost"
        cluster.kill(host)
        wait_for(lambda: host not in cluster.alive(), "the host to be given up")
        (other,) = {"w1", "w2"} - {host}
        cluster.fast(other)
    found = running.result()
    assert found["errors"] == []
    assert_sound(found)
    (trial,) = found["trials"]
    assert_stored(trial, 40)
    assert nodes(trial) == {host, other}
    assert trial["reported"][-1]["resumed_at"] >= len(before)
    output = newest_output(cluster)
    lost = re.findall(r"(\S+/checkpoint_\d+) is lost \(node \w+ is gone\)", output)
    assert lost, "nothing was lost"
    assert len(lost) == len(set(lost)), "named more than once"
    assert {name.rpartition("/")[0] for name in lost} == {trial["dir"]}
    # What it says every half a minute.
    failed = re.findall(r": \d+ checkpoints? .* way.*; stored: \d+, failed: (\d+)\n", output)
    assert set(failed) <= {str(len(lost))}


@pytest.mark.slow
def test_a_killed_driver_does_not_keep_what_is_staged_from_arriving(cluster: Cluster) -> None:
    root = experiment(cluster, "driver")
    trials = [{**SETTINGS, "host": "w1", "steps": 4}]
    process = start_driver(cluster, "driver", 1, sync=STAGED, trials=trials)
    wait_for(lambda: len(staged_on(cluster, "w1")) == 4, "all to be staged")
    send(process, signal.SIGKILL)
    process.wait()
    wait_for(lambda: len(sealed_at_home(root)) > 1, "some to arrive")
    found = search(cluster, name="driver", restore=f"{RESULTS}/driver")
    assert found["errors"] == []
    assert_sound(found)
    (trial,) = found["trials"]
    assert set(stored_digests(trial)) == {0, 1, 2, 3}
    assert all(c["parent"] is None for c in trial["checkpoints"].values()), "nothing was done twice"
    wait_for(lambda: not agents(cluster, "w1"), "the agent of the first driver to end")


@pytest.mark.slow
def test_nodes_whose_driver_is_gone_for_good_send_all_end_and_keep_none(
    cluster: Cluster,
) -> None:
    root = experiment(cluster, "alone")
    trials = [{**SETTINGS, "host": "w1", "steps": 4}]
    process = start_driver(cluster, "alone", 1, sync=STAGED, trials=trials)
    wait_for(lambda: len(staged_on(cluster, "w1")) == 4, "all to be staged")
    send(process, signal.SIGKILL)
    process.wait()
    assert len(sealed_at_home(root)) < 4, "all was there by then"
    lease = root / ".tune_sync/lease.json"
    silent = {"heartbeat_s": 1, "heartbeat_up_s": 1}  # as if it had died minutes ago
    lease.write_text(json.dumps({**json.loads(lease.read_text()), **silent}))
    wait_for(lambda: len(sealed_at_home(root)) == 4, "all to arrive")
    for name in cluster.workers:
        wait_for(lambda name=name: not agents(cluster, name), "the agents to end")  # type: ignore[misc]
        left = "find /tmp/tune_sync-* /dev/shm/tune_sync-* -type f 2>/dev/null"
        assert cluster.exec(name, ["sh", "-c", left], check=False).stdout.split() == []
    found = search(cluster, name="alone", restore=f"{RESULTS}/alone")
    assert found["errors"] == []
    assert_sound(found)
    (trial,) = found["trials"]
    assert set(stored_digests(trial)) == {0, 1, 2, 3}
    assert all(c["parent"] is None for c in trial["checkpoints"].values()), "nothing was done twice"


def sealed_at_home(root: Path) -> set[str]:
    """Checkpoints that are published, or whose bytes are all there."""
    sealed = root.glob(".tune_sync/staging/*/*/*/seal.json")
    return {path.parts[-3] for path in sealed} | set(published(root))


@pytest.mark.slow
def test_what_a_host_had_staged_when_it_went_down_is_sent_once_it_is_back(
    fresh_cluster: Callable[..., Cluster],
) -> None:
    cluster, staging = fresh_cluster(worker_count=1, keep_homes=("w1",)), "/srv/home/staging"
    cluster.slow("w1", rate_mbit=RATE_MBIT)
    root = experiment(cluster, "reboot")
    sync = {**STAGED, "staging_dir": staging}
    trials = [{**SETTINGS, "host": "w1", "steps": 4}]
    process = start_driver(cluster, "reboot", 1, sync=sync, trials=trials)
    wait_for(lambda: len(staged_on(cluster, "w1", staging)) == 4, "all to be staged")
    wait_for(lambda: bool(published(root)), "the first to be published")
    send(process, signal.SIGKILL)
    cluster.kill("w1")
    process.wait()
    assert len(published(root)) < 4, "nothing would be lost"
    cluster.start("w1")
    found = search(cluster, name="reboot", restore=f"{RESULTS}/reboot")
    assert found["errors"] == []
    assert_sound(found)
    (trial,) = found["trials"]
    assert set(stored_digests(trial)) == {0, 1, 2, 3}
    assert all(c["parent"] is None for c in trial["checkpoints"].values()), "nothing was done twice"
    assert staged_on(cluster, "w1", staging) == []


@pytest.mark.slow
def test_a_population_that_keeps_few_finds_what_it_loads(cluster: Cluster) -> None:
    pinned = [{"steps": 6, "host": host, "pause_s": 0.2} for host in ("w1", "w1", "w2", "w2")]
    found = search(
        cluster, name="pbt", trainable="TrainN", sync=STAGED, trials=pinned, pbt=1,
        checkpoint={"num_to_keep": 1, "checkpoint_frequency": 1, "checkpoint_at_end": True},
    )  # fmt: skip
    assert found["errors"] == []
    assert found["leftovers"] == []
    assert any(row["parent"] not in ("", t["id"]) for t in found["trials"] for row in t["reported"])
    for trial in found["trials"]:
        assert trial["reported"][-1]["step"] == 5
        assert trial["opened"]["trial_id"] == trial["id"]
        assert len(trial["checkpoints"]) == 1


@pytest.mark.slow
def test_what_is_lost_after_the_last_step_is_named_and_the_rest_restores(cluster: Cluster) -> None:
    root = experiment(cluster, "late")
    trials = [{**SETTINGS, "steps": 6}]
    with searching(cluster, name="late", sync=STAGED, trials=trials) as running:
        wait_for(lambda: len(published(root)) >= 1, "some to be published")
        (state,) = root.glob("*/checkpoint_000000/state.json")
        host = json.loads(state.read_text())["node"]
        wait_for(lambda: "checkpoint_000005" in staged_on(cluster, host), "all to be staged")
        cluster.kill(host)
    with pytest.raises(DriverError, match="checkpoint_000005"):
        running.result()
    found = search(cluster, name="late", restore=f"{RESULTS}/late")
    assert_sound(found)
