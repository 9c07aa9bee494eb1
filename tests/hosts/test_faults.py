"""What dies or is cut off in the middle of a transfer: hosts, cables, the driver, the agent.

Cables of workers are so slow that a checkpoint of eight files is under way for seconds.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.bed import Cluster
from tests.bed.driver import driver_argv
from tests.bed.host import send
from tests.hosts.drivers.trainables import GO_ON
from tests.hosts.searches import (
    DRIVERS,
    assert_sound,
    nodes,
    search,
    stored_digests,
    wait_for,
)

pytestmark = pytest.mark.hosts

FILE_COUNT = 8
FILE_BYTES = 1_300_000  # more than what travels in batches
# Waits before the second checkpoint, until somebody looks.
SETTINGS = {"file_count": FILE_COUNT, "file_bytes": FILE_BYTES, "told_at": 1}
# The second checkpoint is under way for ten seconds: a busy machine may look seconds late.
RATE_MBIT, LOOKED_AT_MBIT = 20, 8
RESULTS = "/srv/home/ray_results"


@pytest.fixture(scope="module")
def whole_cluster() -> Iterator[Cluster]:
    with Cluster(worker_count=2, worker_cpus=2) as running:
        yield running


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Cluster:
    """Both workers alive, on slow cables."""
    whole_cluster.start(*whole_cluster.workers)
    for name in whole_cluster.workers:
        whole_cluster.slow(name, rate_mbit=RATE_MBIT)
        whole_cluster.exec(name, ["rm", "-f", GO_ON])
    return whole_cluster


def experiment(cluster: Cluster, name: str) -> Path:
    return cluster.host("head").path(f"{RESULTS}/{name}")


def arrived(root: Path, checkpoint: str) -> dict[str, set[str]]:
    """Trial directory -> files of an unpublished checkpoint that are home, each in full."""
    found: dict[str, set[str]] = {}
    for path in root.glob(f".tune_sync/staging/*/{checkpoint}/*/data/file_*"):
        with suppress(FileNotFoundError):  # published just now
            if path.stat().st_size == FILE_BYTES:
                found.setdefault(path.parents[3].name, set()).add(path.name)
    return found


def under_way(root: Path, checkpoint: str, host: str) -> str:
    """A trial of a host that has sent some files of a checkpoint, not all; or ""."""
    for trial, files in arrived(root, checkpoint).items():
        state = root / trial / "checkpoint_000000/state.json"
        if 2 <= len(files) < FILE_COUNT and json.loads(state.read_text())["node"] == host:
            return trial
    return ""


def wait_until_under_way(cluster: Cluster, root: Path, host: str, trials_count: int = 1) -> str:
    """Have all trials go on after their first checkpoint, and wait for the middle of a host's
    second one; returns the trial's directory.
    """
    trials: list[str] = []

    def all_wait() -> bool:
        return len(list(root.glob("*/checkpoint_000000/state.json"))) == trials_count

    def sees_one() -> bool:
        trials.append(under_way(root, "checkpoint_000001", host))
        return bool(trials[-1])

    wait_for(all_wait, "a checkpoint of each trial")
    cluster.slow(host, rate_mbit=LOOKED_AT_MBIT)
    for name in cluster.workers:
        cluster.exec(name, ["touch", GO_ON])
    wait_for(sees_one, "a transfer")
    trial = trials[-1]
    assert not (root / trial / "checkpoint_000001").exists()
    return trial


@contextmanager
def searching(cluster: Cluster, **spec: Any) -> Iterator[Future[dict[str, Any]]]:
    """A search that runs while the block does something to it."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(search, cluster, **spec)


def assert_all_steps(trial: dict[str, Any], steps: int) -> None:
    assert sorted(stored_digests(trial)) == list(range(steps))
    assert list(trial["checkpoints"]) == [f"checkpoint_{i:06d}" for i in range(steps)]
    # A host may die between the report of a step and its checkpoint, and the step is done again.
    last_rows = {row["step"]: row for row in trial["reported"]}
    for step, row in last_rows.items():
        assert row["digest"] == stored_digests(trial)[step]
    assert len(trial["reported"]) <= len(last_rows) + 1
    for row in trial["reported"]:
        again = last_rows[row["step"]]
        assert row is again or row["node"] != again["node"], "done again, and its host is alive"


def test_a_killed_home_agent_comes_back_and_the_run_goes_on(cluster: Cluster) -> None:
    agents = ["pgrep", "-f", "^ray::HomeAgent"]
    with searching(cluster, name="agent", trials=[{**SETTINGS, "host": "w1"}]) as running:
        wait_until_under_way(cluster, experiment(cluster, "agent"), "w1")
        (agent,) = cluster.exec("head", agents).stdout.split()
        cluster.exec("head", ["kill", "-KILL", agent])
        cluster.fast("w1")
        wait_for(lambda: another(cluster, agents, agent) or running.done(), "another agent")
    found = running.result()
    assert found["errors"] == []
    assert_sound(found)
    (trial,) = found["trials"]
    assert_all_steps(trial, 3)
    assert {row["resumed_at"] for row in trial["reported"]} == {0}, "the trial never restarted"


def another(cluster: Cluster, find: list[str], old: str, host: str = "head") -> bool:
    pids = cluster.exec(host, find, check=False).stdout.split()
    return bool(pids) and old not in pids


@pytest.mark.parametrize(
    "names_it",
    [
        pytest.param(True, id="state names them", marks=pytest.mark.lowest),
        pytest.param(False, id="state is older", marks=pytest.mark.slow),
    ],
)
def test_a_killed_driver_leaves_whole_checkpoints_and_a_restore_goes_on_from_them(
    cluster: Cluster, names_it: bool
) -> None:
    name = "named" if names_it else "older"
    root = experiment(cluster, name)
    process = start_driver(cluster, name, state_every_s=1 if names_it else 1000)
    if names_it:
        wait_for(lambda: "checkpoint_000000" in state_text(root), "state that names a checkpoint")
    trial = wait_until_under_way(cluster, root, "w1")
    send(process, signal.SIGKILL)
    process.wait()
    assert ("checkpoint_000000" in state_text(root)) == names_it

    copy = root.with_name(f"{name}_copy")
    cluster.exec("head", ["cp", "-a", f"{RESULTS}/{name}", f"{RESULTS}/{copy.name}"])
    assert list((copy / ".tune_sync/staging").rglob("file_*"))
    cleanup = "import sys, tune_sync; print(tune_sync.cleanup(sys.argv[1]))"
    done = cluster.exec("head", [str(cluster.python), "-c", cleanup, f"{RESULTS}/{copy.name}"])
    assert f"dropped=('{trial}/checkpoint_000001',)" in done.stdout
    assert [path.name for path in copy.glob("*/checkpoint_*")] == ["checkpoint_000000"]
    for left in ("staging", "incoming", "trash"):
        assert not (copy / ".tune_sync" / left).exists()

    cluster.fast("w1")
    found = search(cluster, name=name, restore=f"{RESULTS}/{name}")
    assert found["errors"] == []
    assert_sound(found)
    (only,) = found["trials"]
    assert_all_steps(only, 3)
    assert [row["resumed_at"] for row in only["reported"]][-2:] == [1, 1]


def start_driver(
    cluster: Cluster, name: str, state_every_s: int, **fields: Any
) -> subprocess.Popen[str]:
    """A driver to be killed, of a search with one trial on w1."""
    spec = {"name": name, "trials": [{**SETTINGS, "host": "w1"}], **fields}
    argv = driver_argv(
        cluster.host("head"), cluster.python, DRIVERS / "search.py", [json.dumps(spec)]
    )
    silent = subprocess.DEVNULL
    env = {"TUNE_GLOBAL_CHECKPOINT_S": str(state_every_s)}
    return cluster.popen("head", argv, env, stdout=silent, stderr=silent)


def state_text(root: Path) -> str:
    return "".join(path.read_text() for path in root.glob("experiment_state-*.json"))


@pytest.mark.lowest_slow
def test_a_worker_host_that_dies_in_the_middle_of_a_transfer_costs_that_transfer_only(
    cluster: Cluster,
) -> None:
    root = experiment(cluster, "host")
    with searching(cluster, name="host", trials=[SETTINGS] * 4, max_failures=3) as running:
        caught = wait_until_under_way(cluster, root, "w1", trials_count=4)
        (left,) = root.glob(f".tune_sync/staging/{caught}/checkpoint_000001/*")
        cluster.kill("w1")
        wait_for(lambda: not left.exists(), "what w1 left to be dropped")
        assert not (root / caught / "checkpoint_000001").exists(), "not before it was sent again"
        wait_for(lambda: "w1" not in cluster.alive(), "w1 to be given up")
        cluster.fast("w2")
    found = running.result()
    assert found["errors"] == []
    assert_sound(found)
    assert len(found["trials"]) == 4
    for trial in found["trials"]:
        assert_all_steps(trial, 3)
        where = {c["step"]: c["node"] for c in trial["checkpoints"].values()}
        if trial["dir"] == caught:
            assert where == {0: "w1", 1: "w2", 2: "w2"}
            assert trial["reported"][-1]["resumed_at"] == 1
        assert nodes(trial) <= {"w1", "w2"}


def test_a_host_that_was_cut_off_and_comes_back_changes_nothing(cluster: Cluster) -> None:
    root = experiment(cluster, "cut")
    trials = [{**SETTINGS, "steps": 4, "pause_s": 1}]
    with searching(cluster, name="cut", trials=trials, max_failures=3) as running:
        wait_for(lambda: bool(list(root.glob("*/checkpoint_000000/state.json"))), "a checkpoint")
        (state,) = root.glob("*/checkpoint_000000/state.json")
        first = json.loads(state.read_text())["node"]
        (other,) = {"w1", "w2"} - {first}
        cluster.fast(other)
        trial = wait_until_under_way(cluster, root, first)
        cluster.cut(first)
        wait_for(lambda: (root / trial / "checkpoint_000001").exists(), "the trial on another host")
        cluster.heal(first)
    found = running.result()
    assert found["errors"] == []
    assert_sound(found)
    (only,) = found["trials"]
    assert_all_steps(only, 4)
    where = [c["node"] for c in only["checkpoints"].values()]
    assert where == [first, other, other, other]
    assert_no_late_writes(root, found)


def assert_no_late_writes(root: Path, found: dict[str, Any]) -> None:
    """What the manifests say is what is there, file by file."""
    for checkpoint in found["published"]:
        manifest = json.loads((root / f".tune_sync/manifests/{checkpoint}.json").read_text())
        listed = {entry["path"]: entry["size_bytes"] for entry in manifest["files"]}
        there = [path for path in (root / checkpoint).rglob("*") if path.is_file()]
        sizes = {
            path.relative_to(root / checkpoint).as_posix(): path.stat().st_size for path in there
        }
        assert listed == sizes
