"""Who may write an experiment directory, and what its disk and its readers do to it."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from tests.bed import Cluster
from tests.bed.host import send
from tests.hosts.drivers.names import EXPERIMENT, LINKED_BYTES, ODD, TRIAL
from tests.hosts.drivers.readers import READERS_COUNT, READS_COUNT
from tests.hosts.searches import wait_for
from tests.hosts.test_behind import agents

pytestmark = pytest.mark.hosts

DRIVERS = "tests/hosts/drivers"
TOLD_AT = 5  # the step before which a trial waits
RESULTS = "/srv/home/ray_results"
TRIES_COUNT = 3
START_S = 20.0  # two drivers have joined the cluster by then, also on a busy machine


def results_of(cluster: Cluster, name: str) -> Path:
    """An experiment directory on the head, as this machine sees it."""
    return cluster.host("head").path(RESULTS) / name


def owners(root: Path) -> set[str]:
    manifests = (root / ".tune_sync/manifests").rglob("*.json")
    return {json.loads(manifest.read_text())["owner"] for manifest in manifests}


def claim_at_once(cluster: Cluster, name: str, told_at: int = -1) -> list[dict[str, Any]]:
    """Two drivers that start a run in the same second; who is told goes on when one has ended."""
    start_at_s = int(time.time() + START_S) + 0.2
    on_all(cluster, "rm -f ~/go_on")

    def drive(number: int) -> dict[str, Any]:
        time.sleep(0.1 * number)
        args = ["fit", name, start_at_s, 3, 0.1, told_at]
        return cluster.drive("head", f"{DRIVERS}/claim.py", args)

    with ThreadPoolExecutor() as pool:
        drivers = [pool.submit(drive, number) for number in range(2)]
        wait(drivers, return_when=FIRST_COMPLETED)
        on_all(cluster, "touch ~/go_on")
        return [driver.result() for driver in drivers]


@pytest.mark.lowest_slow
def test_of_two_runs_with_one_name_in_one_second_exactly_one_runs(cluster: Cluster) -> None:
    found = claim_at_once(cluster, "same", 1)  # the one goes on until the other has come
    (winner,) = [f for f in found if "error" not in f]
    (loser,) = [f for f in found if "error" in f]
    assert (winner["errors"], winner["step"]) == ([], 2)
    assert loser["error"] == "LeaseHeldError"
    for part in ("on host head", "process ", "s ago", "choose another name"):
        assert part in loser["text"]
    root = results_of(cluster, "same")
    assert len(owners(root)) == 1
    assert len(list(root.glob("*/checkpoint_*"))) == 3
    assert len(list(root.glob("train_n_*"))) == 1


@pytest.mark.slow
def test_two_runs_without_a_name_in_one_second_get_two_directories(cluster: Cluster) -> None:
    for _ in range(TRIES_COUNT):
        found = claim_at_once(cluster, "-")
        assert [f.get("errors") for f in found] == [[], []]
        if int(found[0]["began_s"]) == int(found[1]["began_s"]):
            break
    else:
        raise AssertionError("they never began in one second")
    paths = {f["path"] for f in found}
    assert len(paths) == 2
    for path in paths:
        root = cluster.host("head").path(path)
        assert len(owners(root)) == 1
        assert len(list(root.glob("*/checkpoint_*"))) == 3


def on_all(cluster: Cluster, command: str) -> None:
    for name in ("head", *cluster.workers):
        cluster.exec(name, ["sh", "-c", command])


def start_driver(cluster: Cluster, name: str, mode: str = "stored") -> subprocess.Popen[str]:
    """A driver whose saved state names a checkpoint of its trial, which goes on when it is told."""
    on_all(cluster, "rm -f ~/go_on")
    args = ["fit", name, "0", "10", "0.3", str(TOLD_AT), mode]
    argv = [str(cluster.python), "-m", "tests.hosts.drivers.claim", *args]
    env = {"TUNE_GLOBAL_CHECKPOINT_S": "0.3"}
    driver = cluster.popen("head", argv, env=env, stdout=subprocess.PIPE)
    deadline_s = time.monotonic() + 120
    # Registered checkpoints are pickled into the state as hexadecimal text. In plain text their
    # names stand in the last result too, which comes before Ray registers the checkpoint.
    named = b"/checkpoint_00000".hex()
    while not any(
        named in state.read_text()
        for state in results_of(cluster, name).glob("experiment_state-*.json")
    ):
        assert driver.poll() is None, driver.stdout and driver.stdout.read()
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return driver


def last_result(driver: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = driver.communicate(timeout=120)
    (line,) = [line for line in out.splitlines() if line.startswith("RESULT")]
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT"))
    return found


@pytest.mark.lowest_slow
def test_a_moved_run_whose_driver_was_killed_goes_on_at_once_in_its_new_place_alone(
    cluster: Cluster,
) -> None:
    driver = start_driver(cluster, "moved")
    send(driver, signal.SIGKILL)
    driver.wait()
    move = 'mkdir -p ~/b && mv ~/ray_results/moved ~/b/"new name" && echo no > ~/ray_results/moved'
    cluster.exec("head", ["sh", "-c", move])
    on_all(cluster, "touch ~/go_on")
    before = cluster.tree("head", "~/b/new name")
    old_places = cluster.tree("head", "~/ray_results")
    found = cluster.drive("head", f"{DRIVERS}/claim.py", ["restore", "/srv/home/b/new name"])
    assert found["errors"] == []
    assert found["path"] == "/srv/home/b/new name"
    assert (found["step"], found["opened"]) == (9, [True] * 10)
    assert found["resumed_at"] > 0
    named = [f"/checkpoint_{number:06d}/" for number in range(found["resumed_at"])]
    kept = {k: v for k, v in before.items() if any(n in k for n in named) and k[0] != "."}
    # The last one may have been sealed and not in its place yet when the driver was killed.
    assert len(kept) >= 3 * max(1, len(named) - 1)
    after = cluster.tree("head", "~/b/new name")
    assert {k: after[k] for k in kept} == kept
    assert len(owners(cluster.host("head").path("/srv/home/b/new name"))) == 2
    assert cluster.tree("head", "~/ray_results") == old_places
    assert old_places["moved"][0] == "file"


@pytest.mark.parametrize("mode", ["stored", pytest.param("staged", marks=pytest.mark.slow)])
def test_a_stopped_driver_that_goes_on_after_its_run_was_taken_over_writes_nothing(
    cluster: Cluster, mode: str
) -> None:
    name = f"stopped-{mode}"
    driver = start_driver(cluster, name, mode)
    send(driver, signal.SIGSTOP)
    try:
        lease = results_of(cluster, name) / ".tune_sync/lease.json"
        silent = {"heartbeat_s": 1, "heartbeat_up_s": 1}  # as if it was stopped long ago
        lease.write_text(json.dumps({**json.loads(lease.read_text()), **silent}))
        on_all(cluster, "touch ~/go_on")
        found = cluster.drive("head", f"{DRIVERS}/claim.py", ["restore", f"{RESULTS}/{name}"])
        before = cluster.tree("head", f"~/ray_results/{name}")
    finally:
        send(driver, signal.SIGCONT)
        driver.send_signal(signal.SIGCONT)  # nsenter stops when its child does
    lost = last_result(driver)
    assert (found["errors"], found["step"]) == ([], 9)
    assert lost["error"] == "LeaseLostError"
    assert "no longer owned by this run" in lost["text"]
    assert cluster.tree("head", f"~/ray_results/{name}") == before
    for worker in cluster.workers:  # those of write-behind may have something to send until then
        wait_for(lambda worker=worker: not agents(cluster, worker), "the agents to end")  # type: ignore[misc]
    assert cluster.tree("head", f"~/ray_results/{name}") == before


@pytest.mark.lowest_slow
def test_many_readers_of_one_checkpoint_never_see_files_rewritten(cluster: Cluster) -> None:
    cluster.slow("w2", rate_mbit=800)  # so that a download takes a while
    try:
        found = cluster.drive("head", f"{DRIVERS}/readers.py")
    finally:
        cluster.fast("w2")
    assert found["node"] == "w1"
    assert {node for node, _ in found["where"]} == {"w2"}
    assert len({pid for _, pid in found["where"]}) == READERS_COUNT
    digests = [d for reader in found["together"] for d in reader["digests"]]
    assert digests == [found["digest"]] * READERS_COUNT * READS_COUNT
    directories = {reader["directory"] for reader in found["together"]}
    assert len(directories) == READERS_COUNT

    first, *others = found["after_death"]
    assert "died" in first
    assert found["begun"] == found["left"]  # in the middle of its download
    assert len(found["left"]) == 1
    assert [d for o in others for d in o["digests"]] == (
        [found["digest"]] * (READERS_COUNT - 1) * READS_COUNT
    )
    assert found["copies"] == [True, True]


def test_a_full_disk_fails_one_report_and_harms_nothing(cluster: Cluster) -> None:
    cluster.small_disk("head", "/srv/full", (64 + 20) << 20)
    cluster.exec("head", ["dd", "if=/dev/zero", "of=/srv/full/ballast", "bs=1M", "count=20"])
    found = cluster.drive("head", f"{DRIVERS}/disks.py", ["full", "/srv/full"])
    assert found["errors"] == []
    (failure,) = found["failures"]
    assert failure["node"] == "w1"
    assert failure["text"].startswith("StoreFullError")
    for part in ("/srv/full/", "no space left", f"need {20 << 20} bytes", "free ", "make room"):
        assert part in failure["text"]
    assert failure["staged"] == []
    in_order = [found["stored"][str(step)] for step in range(4)]
    assert failure["digests"] == in_order[:3]
    assert found["digests"] == in_order
    assert found["manifests"] == 4
    assert found["staged"] == []
    cluster.unmount("head", "/srv/full")


def test_a_read_only_target_is_refused_before_training(cluster: Cluster) -> None:
    cluster.exec("head", ["mkdir", "-p", "/srv/ro"])
    cluster.read_only("head", "/srv/ro")
    found = cluster.drive("head", f"{DRIVERS}/disks.py", ["read_only", "/srv/ro"])
    assert len(found["refusals"]) == 2
    for refusal in found["refusals"]:
        assert refusal.startswith("StoreFullError")
        assert "/srv/ro" in refusal
        assert "read-only" in refusal
        assert "choose another storage_path" in refusal
    assert found["unchanged"]


def test_without_syncing_a_path_of_one_node_fails_with_one_error_that_says_what_to_do(
    cluster: Cluster,
) -> None:
    found = cluster.drive("head", f"{DRIVERS}/disks.py", ["not_shared"])
    error = found["error"]
    assert "/srv/home/ray_results/alone" in error
    assert any(found["nodes"][w] in error and cluster.addresses[w] in error for w in ("w1", "w2"))
    assert 'tune_sync.SyncConfig(syncer="auto")' in error


@pytest.mark.lowest_slow
def test_odd_names_and_links_of_a_worker_arrive_as_they_are(cluster: Cluster) -> None:
    found = cluster.drive("head", f"{DRIVERS}/names.py")
    assert found["errors"] == []
    assert found["nodes"] == ["w1"]
    assert found["root"].endswith(f"/{EXPERIMENT}/{TRIAL}")
    plain, ours, links = found["at_home"]
    assert {name for name in plain if "/" not in name} == {*ODD, "dirs", "empty"}
    assert plain == ours == found["seen"][0] == found["seen"][1]
    assert plain["a b"] != plain["a%20b"]
    assert found["artifacts"] == plain

    seen = found["seen"][2]
    for copy, original in {"to_file": "real/f", "absolute": "real/f", "to_dir/f": "real/f"}.items():
        assert links[copy] == seen[original]
    for name in ("h1", "h2", "h3", "h4", "small1", "small2"):
        assert links[name] == seen[name]
    assert not [path for path, entry in links.items() if entry[0] == "link"]
    large, small = found["inodes"][:4], found["inodes"][4:]
    assert len(set(large)) == 1
    assert len(set(small)) == 1
    assert LINKED_BYTES < found["sent_bytes"][2] < 1.5 * LINKED_BYTES
    assert len(found["opened"]) == 3
    assert all(found["opened"])


def test_no_file_of_a_run_holds_the_clusters_token(cluster: Cluster) -> None:
    token = cluster.exec("head", ["sh", "-c", "echo $RAY_AUTH_TOKEN"]).stdout.strip()
    assert len(token) > 20
    found = cluster.drive("head", f"{DRIVERS}/claim.py", ["fit", "token", "0", "1", "0"])
    assert found["errors"] == []
    assert (results_of(cluster, "token") / "tuner.pkl").is_file()
    searched = cluster.exec("head", ["grep", "-rlF", token, "."], check=False)
    assert (searched.returncode, searched.stdout) == (1, "")


def test_a_checkpoint_whose_home_is_gone_is_an_error_not_an_empty_place(cluster: Cluster) -> None:
    made = cluster.drive("w2", f"{DRIVERS}/lost_home.py", ["make"])
    assert (made["node"], made["trial_node"]) == ("w2", "w1")
    args = ["open", made["checkpoint"]]
    read = cluster.drive("head", f"{DRIVERS}/lost_home.py", args)
    assert (read["there"], read["driver"], read["task"]) == (False, "step 0", "step 0")
    cluster.kill("w2")
    cluster.wait_dead("w2")
    lost = cluster.drive("head", f"{DRIVERS}/lost_home.py", args)
    for end in (lost["driver"], lost["task"]):
        assert end.startswith("HomeLostError")
        assert "/srv/home/ray_results/lost" in end
        assert "copy the directory here" in end
    # The last test of this cluster: w2 stays off.
