"""Two thousand checkpoints behind the training, and one agent that dies often: nothing grows.

`TUNE_SYNC_SOAK_STEPS`: another number of steps than 500, for each of the four trials.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.bed import Cluster
from tests.hosts.memory import processes
from tests.hosts.searches import assert_sound, wait_for
from tests.hosts.test_behind import AGENTS, agents
from tests.hosts.test_faults import experiment, searching

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(1500)]

TRIALS_COUNT = 4
STEPS = int(os.environ.get("TUNE_SYNC_SOAK_STEPS", "500"))
KEPT_COUNT = 3
LIMIT_S = 1200.0
KILL_EVERY_S, LOOK_EVERY_S = 15.0, 1.0
LAST_KILL_COUNT = TRIALS_COUNT * STEPS * 9 // 10  # checkpoints
TRIAL = "ray::ImplicitFunc"
WATCHED = ("ray::HomeAgent", "ray::NodeAgent", TRIAL)
KILLED, SPARED = "w1", "w2"  # whose node agent is killed, and whose lives as long as the run
COMPARED = {
    "driver", "ray::HomeAgent on head", f"ray::NodeAgent on {SPARED}",
    f"{TRIAL} on {KILLED}", f"{TRIAL} on {SPARED}",
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "staged": {"wait_for": "staged"},
    "replicated": {"wait_for": "replicated", "fast_path": {"memory_limit": 64 << 20}},
}
# On any host, when all has ended: checkpoints, and files that are larger than a note.
LEFT = "find /tmp/tune_sync-* /dev/shm/tune_sync-* -type f -size +4k 2>/dev/null"
# What a process may take more in the last third than in the first: some MiB of caches.
MORE_BYTES, MORE_FILES, MORE_THREADS = 32 << 20, 20, 10


@dataclass(frozen=True, slots=True)
class Use:
    """What one process takes."""

    bytes: int
    files: int
    threads: int


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(worker_count=2, worker_cpus=2) as running:
        yield running


def use_of(pid: int) -> Use:
    status = Path(f"/proc/{pid}/status").read_text()
    lines = (line.partition(":") for line in status.splitlines())
    found = {name: value.split()[0] for name, _, value in lines if value.strip()}
    files = len(os.listdir(f"/proc/{pid}/fd"))
    return Use(int(found["RssAnon"]) << 10, files, int(found["Threads"]))


def drivers(cluster: Cluster) -> list[int]:
    found = []
    for pid in processes(cluster, "head", ""):
        try:
            argv = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            continue
        found += [pid] if any(arg.endswith("drivers/search.py") for arg in argv) else []
    return found[-1:]


def larger(one: Use, other: Use) -> Use:
    """The most that either has of each."""
    return Use(*map(max, zip(astuple(one), astuple(other), strict=True)))


def look(cluster: Cluster) -> dict[str, Use]:
    """What is taken by the driver, and by the largest process of each other kind on a host."""
    found: dict[str, Use] = {}
    for host in ("head", *cluster.workers):
        for title in WATCHED:
            for pid in processes(cluster, host, title):
                try:
                    use, kind = use_of(pid), f"{title} on {host}"
                    found[kind] = larger(found.get(kind, use), use)
                except (OSError, KeyError):  # it has just been killed
                    continue
    for pid in drivers(cluster):
        with suppress(OSError, KeyError):  # it has just ended
            found["driver"] = use_of(pid)
    return found


def done_count(root: Path) -> int:
    newest: dict[str, int] = {}
    for path in root.glob("*/checkpoint_*"):
        newest[path.parent.name] = max(newest.get(path.parent.name, 0), int(path.name[-6:]) + 1)
    return sum(newest.values())


@pytest.mark.parametrize("way", WAYS)
def test_memory_files_and_threads_stay_as_they_are(cluster: Cluster, way: str) -> None:
    name, samples, killed_count = f"soak-{way}", list[tuple[int, dict[str, Use]]](), 0
    root = experiment(cluster, name)
    trials = [{"blob_bytes": 20_000, "steps": STEPS}] * TRIALS_COUNT
    trials = [{**settings, "number": n} for n, settings in enumerate(trials)]
    with searching(
        cluster, name=name, sync=WAYS[way], trials=trials, timeout_s=LIMIT_S,
        checkpoint={"num_to_keep": KEPT_COUNT},
    ) as running:  # fmt: skip
        killed_s = time.monotonic()
        while not running.done():
            samples.append((done_count(root), look(cluster)))
            # Not at the end: who is killed as the last one leaves what it has to the next run.
            is_due = time.monotonic() - killed_s > KILL_EVERY_S and samples[-1][0] < LAST_KILL_COUNT
            found = agents(cluster, KILLED) if is_due else []
            for agent in found:  # else there is none yet
                killed_s = time.monotonic()
                cluster.exec(KILLED, ["kill", "-KILL", agent], check=False)
                killed_count += 1
            time.sleep(LOOK_EVERY_S)
    told = running.result()
    assert told["errors"] == []
    assert_sound(told)
    assert killed_count >= 2, AGENTS
    for trial in told["trials"]:
        assert len(trial["checkpoints"]) == KEPT_COUNT
        assert trial["reported"][-1]["step"] == STEPS - 1
    whole = [uses for count, uses in samples if count and uses.keys() >= COMPARED]
    third = len(whole) // 3
    assert third > 2, f"{len(samples)} samples"
    for what in sorted(COMPARED):
        # All is loaded by then; what has just begun still grows.
        parts = whole[third // 3 : third], whole[-third:]
        before, after = ([uses[what] for uses in part] for part in parts)
        print(what, "early", max(before, key=lambda u: u.bytes), "late", after[-1])
        assert max(u.bytes for u in after) < max(u.bytes for u in before) + MORE_BYTES, what
        assert max(u.files for u in after) < max(u.files for u in before) + MORE_FILES, what
        assert max(u.threads for u in after) < max(u.threads for u in before) + MORE_THREADS, what
    for host in ("head", *cluster.workers):
        wait_for(lambda host=host: not agents(cluster, host), "the agents to end")  # type: ignore[misc]
    for host in ("head", *cluster.workers):
        assert cluster.exec(host, ["sh", "-c", LEFT], check=False).stdout.split() == []
