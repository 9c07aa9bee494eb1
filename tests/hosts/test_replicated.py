"""Reports that wait until another host has the checkpoint too, and hosts that die right after.

Nodes may send so little that checkpoints are on their way to the destination for seconds. What goes
from memory to memory is not held up by that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed import Cluster, DriverError
from tests.bed.cable import CLOSED_FROM
from tests.bed.ray_node import PYTHONPATH
from tests.fastpath.certificates import make_certificates
from tests.hosts.drivers.hostile import CANARY
from tests.hosts.searches import (
    DRIVERS,
    assert_sound,
    nodes,
    said,
    search,
    stored_digests,
    wait_for,
)
from tests.hosts.test_faults import RESULTS, experiment, searching
from tests.local.test_metrics_export import PACKAGES
from tune_sync.fastpath import Tls

pytestmark = pytest.mark.hosts

FILE_BYTES = 1_300_000  # more than what travels in batches
REPLICATED: dict[str, Any] = {
    "wait_for": "replicated",
    "fast_path": {"memory_limit": 256 << 20},
    "max_bandwidth_bytes_per_s": 400_000,
}
SETTINGS = {"file_count": 1, "file_bytes": FILE_BYTES, "blob_bytes": 200_000, "pause_s": 0.2}


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def whole_cluster(tls: Tls) -> Iterator[Cluster]:
    packages = PACKAGES.resolve()  # with them Ray exports metrics
    env = {"PYTHONPATH": f"{PYTHONPATH}:{packages}", "RAY_metrics_report_interval_ms": "1000"}
    shared = [tls.key.parent, packages]
    with Cluster(worker_count=2, worker_cpus=1, head_cpus=0, shared=shared, env=env) as running:
        yield running


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Cluster:
    """Both workers alive."""
    whole_cluster.start(*whole_cluster.workers)
    return whole_cluster


def staged(cluster: Cluster, host: str) -> set[str]:
    """Checkpoints that are sealed on a host, in shared memory or, where others fill it, on disk."""
    inside = "*/*/*/.tune_sync/staging/*/*/*/seal.json"
    find = cluster.host(host).path("/").glob
    return {s.parts[-3] for place in ("dev/shm", "tmp") for s in find(f"{place}/{inside}")}


def published(root: Path) -> set[str]:
    return {path.stem for path in root.glob(".tune_sync/manifests/*/*.json")}


def reported(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    """What the driver has heard of, at once: home it comes with the next state, which Ray saves
    the more seldom the longer that takes.
    """
    inside = f"tmp/ray/session_2*/artifacts/*/{name}/driver_artifacts/*/result.json"
    return [
        json.loads(line)
        for path in cluster.host("head").path("/").glob(inside)
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]


def test_what_was_reported_as_replicated_outlives_the_host_that_wrote_it(cluster: Cluster) -> None:
    root = experiment(cluster, "outlives")
    trials = [{**SETTINGS, "steps": 4, "hold_at": 3}]
    sync = {**REPLICATED, "max_bandwidth_bytes_per_s": 200_000}  # seven seconds each
    with searching(cluster, name="outlives", sync=sync, trials=trials, max_failures=2) as running:
        wait_for(lambda: len(reported(cluster, "outlives")) == 3 or running.done(), "three reports")
        host = reported(cluster, "outlives")[0]["node"]
        assert len(published(root)) < 3, "nothing would be lost"
        cluster.kill(host)
        wait_for(lambda: host not in cluster.alive(), "the host to be given up")
    found = running.result()
    assert found["errors"] == []
    assert_sound(found)
    (trial,) = found["trials"]
    (other,) = {"w1", "w2"} - {host}
    assert nodes(trial) == {host, other}
    assert trial["reported"][-1]["resumed_at"] == 3, "it did not go on from its newest"
    assert stored_digests(trial) == {row["step"]: row["digest"] for row in trial["reported"]}
    assert sorted(stored_digests(trial)) == list(range(4))
    for name in ("head", other):
        # A folder of ours is removed by whoever leaves last, and only if it is empty.
        folders = cluster.host(name).path("/dev/shm").glob
        wait_for(lambda folders=folders: not [*folders("tune_sync-*")], "memory to be free")  # type: ignore[misc]


def arriving(cluster: Cluster, host: str) -> list[Path]:
    """Attempts in shared memory of a host that are not sealed, with bytes in them."""
    attempts = cluster.host(host).path("/").glob("dev/shm/*/*/*/.tune_sync/staging/*/*/*")
    return [a for a in attempts if any(a.glob("data/*")) and not (a / "seal.json").exists()]


@pytest.mark.slow
def test_a_host_that_dies_while_it_is_replicated_leaves_no_half_checkpoint(
    cluster: Cluster,
) -> None:
    for name in cluster.workers:
        cluster.slow(name, rate_mbit=4)  # 20 s each: the host is dead before one is there
    trials = [{**SETTINGS, "file_count": 8, "steps": 2, "pause_s": 0.0}]
    sync = {**REPLICATED, "max_bandwidth_bytes_per_s": None}
    with searching(cluster, name="half", sync=sync, trials=trials, max_failures=2) as running:
        wait_for(lambda: len(reported(cluster, "half")) >= 1, "a report")
        wait_for(lambda: bool(arriving(cluster, "head")) or running.done(), "a replica on its way")
        host = reported(cluster, "half")[0]["node"]
        cluster.kill(host)
        half = arriving(cluster, "head")
        before = len(reported(cluster, "half"))
        assert half, "it was whole"
        wait_for(lambda: host not in cluster.alive(), "the host to be given up")
        for name in {*cluster.workers} - {host}:
            cluster.fast(name)
    found = running.result()
    for name in cluster.workers:
        cluster.fast(name)
    assert found["errors"] == []
    assert_sound(found)
    (trial,) = found["trials"]
    assert trial["reported"][-1]["resumed_at"] >= before
    last = {row["step"]: row["digest"] for row in trial["reported"]}
    assert stored_digests(trial) == last
    assert sorted(last) == list(range(2))
    wait_for(lambda: not arriving(cluster, "head"), "what arrived in part to go")


@pytest.mark.slow
def test_a_trial_goes_on_elsewhere_before_its_checkpoint_is_stored(cluster: Cluster) -> None:
    root = experiment(cluster, "far")
    trials = [{"blob_bytes": 300_000, "steps": 4, "hold_at": 3}]
    sync = {**REPLICATED, "max_bandwidth_bytes_per_s": 10_000}  # half a minute each
    with searching(
        cluster, name="far", sync=sync, trials=trials, max_failures=2, timeout_s=300
    ) as running:
        wait_for(lambda: len(reported(cluster, "far")) == 3 or running.done(), "three reports")
        cluster.kill(reported(cluster, "far")[0]["node"])
        wait_for(lambda: len(reported(cluster, "far")) == 4 or running.done(), "another one")
        assert "checkpoint_000002" not in published(root)
    found = running.result()
    assert found["errors"] == []
    assert_sound(found)
    (trial,) = found["trials"]
    assert nodes(trial) == {"w1", "w2"}
    assert trial["reported"][-1]["resumed_at"] == 3
    assert stored_digests(trial) == {row["step"]: row["digest"] for row in trial["reported"]}


def by(transport: str, **more: Any) -> dict[str, Any]:
    return {**REPLICATED, "fast_path": {**REPLICATED["fast_path"], "transport": transport, **more}}


def own_ports(cluster: Cluster, host: str) -> list[int]:
    """Ports that agents of nodes opened beside those that Ray gave them."""
    agents = cluster.exec(host, ["pgrep", "-f", "^ray::NodeAgent"]).stdout.split()
    lines = cluster.exec(host, ["ss", "-Htlnp"]).stdout.splitlines()
    mine = [line for line in lines if any(f"pid={pid}," in line for pid in agents)]
    ports = [int(line.split()[3].rpartition(":")[2]) for line in mine]
    return [port for port in ports if port >= CLOSED_FROM]


def greeting(cluster: Cluster, port: int) -> str:
    """What a port of the head says to a worker that says nothing."""
    place = (cluster.addresses["head"], port)
    code = f"""
import socket
with socket.create_connection({place}, 10) as connection:
    connection.settimeout(1)
    try:
        print(connection.recv(100))
    except TimeoutError:
        pass
"""
    return cluster.exec("w1", [str(cluster.python), "-c", code]).stdout


@pytest.mark.parametrize("transport", ["tcp", pytest.param("object_store", marks=pytest.mark.slow)])
def test_each_transport_brings_the_bytes_and_status_names_it(
    cluster: Cluster, transport: str, tls: Tls
) -> None:
    """TCP within TLS; what does not ask for any transport goes by TCP without."""
    name = f"by_{transport}"
    trials = [{**SETTINGS, "steps": 4, "host": "w1", "told_at": 2}]
    go_on = cluster.host("w1").expand("~/go_on")
    cluster.exec("w1", ["rm", "-f", go_on])
    more = {"tls": tls.paths} if transport == "tcp" else {}
    sync = {**by(transport, required=True, **more), "max_bandwidth_bytes_per_s": None}
    with searching(cluster, name=name, sync=sync, trials=trials) as running:
        wait_for(lambda: len(reported(cluster, name)) >= 2 or running.done(), "two reports")
        try:
            status = cluster.drive("w2", DRIVERS / "status.py", [name])
            opened = own_ports(cluster, "head")
            greetings = [greeting(cluster, port) for port in opened]
        finally:
            cluster.exec("w1", ["touch", go_on])
    found = running.result()
    assert found["errors"] == []
    assert_sound(found)
    (trial,) = found["trials"]
    assert stored_digests(trial) == {row["step"]: row["digest"] for row in trial["reported"]}
    home, worker = sorted(status["nodes"], key=lambda n: n["host"] != cluster.addresses["head"])
    assert (home["transports"], worker["transports"]) == ([transport], [])
    sent_to = f"replicas go to node {home['node']} by '{transport}'"
    assert said(cluster, "w1", sent_to)
    # The object store needs no port of ours; and within TLS, who connects speaks first.
    assert greetings == ([""] if transport == "tcp" else [])


REFUSED = {"PathRefusedError", "ImmutableError", "DamagedError", "NotWholeError"}
NOT_THERE = {"FileNotFoundError", "KeyError", "False"}


@pytest.mark.slow
def test_strangers_and_hostile_calls_of_another_host_change_nothing(cluster: Cluster) -> None:
    name = "hostile"
    root, go_on = experiment(cluster, name), cluster.host("w1").expand("~/go_on")
    cluster.exec("w1", ["rm", "-f", go_on])
    trials = [{**SETTINGS, "steps": 4, "host": "w1", "told_at": 2}]
    sync = {**by("tcp"), "max_bandwidth_bytes_per_s": None}
    with searching(cluster, name=name, sync=sync, trials=trials) as running:
        try:
            wait_for(lambda: len(published(root)) == 2 or running.done(), "two checkpoints")
            (state,) = root.glob("*/checkpoint_000001/state.json")
            checkpoint = "/".join(state.parts[-3:-1])
            told = cluster.drive(
                "w2", DRIVERS / "hostile_node.py", [f"{RESULTS}/{name}", checkpoint]
            )
        finally:
            cluster.exec("w1", ["touch", go_on])
    found = running.result()
    assert told["strangers"].pop("has another token") == "PeerRefusedError"
    # At most they hear what is said to all who come.
    assert all(h.isdigit() and int(h) < 256 for h in told["strangers"].values()), told["strangers"]
    assert told["is brought"], "nothing was read there"
    for asked in (told["through the door"], told["calls"]):
        assert {w: e for w, e in asked.items() if e not in REFUSED | NOT_THERE} == {}
    for host in ("head", "w1"):
        places = ["/tmp", "/srv", "/dev/shm"]
        assert cluster.exec(host, ["find", *places, "-name", "*evil*"]).stdout == ""
        assert not cluster.host(host).path(CANARY).exists(), "what was received was unpickled"
    assert found["errors"] == []
    assert_sound(found)
    (trial,) = found["trials"]
    assert stored_digests(trial) == {row["step"]: row["digest"] for row in trial["reported"]}
    folders = cluster.host("head").path("/dev/shm").glob
    wait_for(lambda: not [*folders("tune_sync-*")], "memory to be free")


@pytest.mark.slow
def test_what_waits_for_its_period_is_on_a_second_host_meanwhile(cluster: Cluster) -> None:
    root = experiment(cluster, "period")
    sync = {**REPLICATED, "sync_on_checkpoint": False, "sync_period": 600.0}
    trials = [{**SETTINGS, "steps": 6, "hold_at": 4}]
    with searching(cluster, name="period", sync=sync, trials=trials, max_failures=2) as running:
        wait_for(lambda: len(reported(cluster, "period")) == 4 or running.done(), "four reports")
        host = reported(cluster, "period")[0]["node"]
        assert "checkpoint_000003" not in published(root), "nothing would be lost"
        cluster.kill(host)
        wait_for(lambda: host not in cluster.alive(), "the host to be given up")
    found = running.result()
    assert found["errors"] == []
    assert_sound(found)
    (trial,) = found["trials"]
    assert trial["reported"][-1]["resumed_at"] == 4, "it did not go on from its newest"
    stored, last = stored_digests(trial), {r["step"]: r["digest"] for r in trial["reported"]}
    assert sorted(last) == list(range(6))
    assert stored.items() <= last.items()
    assert 5 in stored and len(stored) < 6, "only the newest travels"


@pytest.mark.slow
def test_a_host_that_is_lost_before_it_replicates_costs_what_was_not_reported(
    cluster: Cluster,
) -> None:
    """Its report never returned: the trial goes on from the one before, and nothing is missed."""
    go_on = cluster.host("w1").expand("~/go_on")
    trials = [{**SETTINGS, "steps": 4, "told_at": 2, "hold_at": 3}]
    for name in cluster.workers:
        cluster.exec(name, ["rm", "-f", go_on])
    with searching(
        cluster, name="never", sync=REPLICATED, trials=trials, max_failures=2
    ) as running:
        wait_for(lambda: len(reported(cluster, "never")) == 2 or running.done(), "two reports")
        host = reported(cluster, "never")[0]["node"]
        (other,) = {"w1", "w2"} - {host}
        cluster.cut(host)
        for name in cluster.workers:
            cluster.exec(name, ["touch", go_on])
        wait_for(lambda: "checkpoint_000002" in staged(cluster, host), "another one")
        assert not arriving(cluster, "head"), "it was under way"
        cluster.kill(host)
        wait_for(lambda: host not in cluster.alive(), "the host to be given up")
    found = running.result()
    assert found["errors"] == []
    assert_sound(found)
    (trial,) = found["trials"]
    assert [row["step"] for row in trial["reported"]] == list(range(4)), "one was done twice"
    assert [row["node"] for row in trial["reported"]] == [host] * 2 + [other] * 2
    assert trial["reported"][-1]["resumed_at"] == 2
    assert stored_digests(trial) == {row["step"]: row["digest"] for row in trial["reported"]}


def test_a_required_transport_whose_port_is_closed_is_an_error_before_training(
    cluster: Cluster,
) -> None:
    trials = [{**SETTINGS, "steps": 1, "host": "w1"}]
    cluster.close_ports("head")
    try:
        with pytest.raises(DriverError) as failed:
            search(cluster, name="closed", sync=by("tcp", required=True), trials=trials)
    finally:
        cluster.fast("head")
    said = failed.value.output
    assert "TransportMissingError: transport 'tcp' is required" in said
    assert cluster.addresses["w1"] in said and cluster.addresses["head"] in said
    assert not list(experiment(cluster, "closed").glob("train_n*"))


@pytest.mark.slow
def test_ports_that_are_open_in_a_firewall_are_enough(cluster: Cluster) -> None:
    trials = [{**SETTINGS, "steps": 2, "host": "w1"}]
    sync = by("tcp", required=True, ports=f"{CLOSED_FROM - 8}-{CLOSED_FROM - 1}")
    cluster.close_ports("head")
    try:
        found = search(cluster, name="open", sync=sync, trials=trials)
    finally:
        cluster.fast("head")
    assert found["errors"] == []
    assert_sound(found)


@pytest.mark.slow
def test_status_names_replicas_and_how_they_came(cluster: Cluster) -> None:
    trials = [{**SETTINGS, "steps": 6, "host": "w1"}]
    with searching(cluster, name="status", sync=REPLICATED, trials=trials) as running:
        wait_for(lambda: len(reported(cluster, "status")) >= 2 or running.done(), "two reports")
        status = cluster.drive("w2", DRIVERS / "status.py", ["status"])
        came = cluster.drive("w2", DRIVERS / "replica_metrics.py", ["status"])
    assert running.result()["errors"] == []
    home, worker = sorted(status["nodes"], key=lambda n: n["host"] != cluster.addresses["head"])
    assert home["transports"] == ["tcp"]
    assert worker["transports"] == []
    assert home["staged_count"] + home["stored_count"] > 0, "the home node sends"
    assert came.pop(home["host"])["tcp"] >= 2 * FILE_BYTES
    assert came.pop(worker["host"])["tune_sync_replicated_checkpoints"] > 0
    assert [*came.values()] == [{}], "only there"
    assert worker["replicas_count"] > 0, "and the worker keeps the other copy"
    assert worker["staged_count"] == worker["stored_count"] == 0
