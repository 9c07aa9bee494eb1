"""Default syncing measured: python -m benchmarks.default_sync [--quick] [--old-python PYTHON]

On two isolated hosts, all in one run, interleaved, medians: files in the worker's page cache,
to durable files on the driver's node. Prints tables in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.cases import CASES, MIB, Case
from benchmarks.hosts import HEAD, WORKER, Hosts
from benchmarks.memory import Watch

# path of `Hosts.send` -> what the table calls it
PATHS = {
    "report": "ours: `tune.report`, Ray's `Checkpoint`",
    "ours": "ours: `tune.report`, `tune_sync.Checkpoint`",
    "syncer": "ours: `ObjectStoreSyncer.sync_up`",
    "get": "limit: `ray.get` of 64 MiB arrays",
    "tcp-memory-1": "TCP, 1 stream, into memory",
    "tcp-memory-2": "TCP, 2 streams, into memory",
    "tcp-files-1": "TCP, sendfile to files, fsync",
    "old": "Ray 2.6.3 `sync_dir_between_nodes`",
}
STORE_BYTES = 2 << 30
SMALL_STORE_BYTES = 512 * MIB
MEASURED = ("large", "many", "small")

Times = dict[str, dict[str, list[float]]]  # case -> path (or "path blocked") -> seconds


def measure(hosts: Hosts, cases: list[Case], paths: list[str], rounds: int) -> Times:
    """Send every case over every path `rounds` times, and once before, which is not counted."""
    times: Times = {case.name: {} for case in cases}
    for number in range(-1, rounds):
        for case in cases:
            for path in paths:
                os.sync()  # nobody pays for what another one wrote
                found = hosts.send(path, case)
                print(f"# round {number} {case.name} {path} {json.dumps(found)}", file=sys.stderr)
                if number < 0:
                    continue
                times[case.name].setdefault(path, []).append(found["seconds"])
                if "blocked_s" in found:
                    times[case.name].setdefault(path + " blocked", []).append(found["blocked_s"])
    return times


def speed_table(times: Times) -> str:
    """A Markdown table a case: seconds (median, range), GB/s, and against the two peers."""
    lines = []
    for name, of_path in times.items():
        case, medians = CASES[name], {p: statistics.median(t) for p, t in of_path.items()}
        lines += [f"\n**{case.title}**\n"]
        lines += ["| | s | range | GB/s | blocks, s | part of the limit | times Ray 2.6.3 |"]
        lines += ["|---|---|---|---|---|---|---|"]
        for path, title in PATHS.items():
            if path not in medians:
                continue
            median, seconds = medians[path], of_path[path]
            blocked = medians.get(path + " blocked")
            row = [
                title, f"{median:.3f}", f"{min(seconds):.3f} to {max(seconds):.3f}",
                f"{case.total_bytes / median / 1e9:.2f}",
                "" if blocked is None else f"{blocked:.3f}",
                f"{medians['get'] / median:.2f}" if "get" in medians else "",
                f"{medians['old'] / median:.1f}" if "old" in medians else "",
            ]  # fmt: skip
            lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def memory_table(paths: list[str]) -> str:
    """Peak memory beyond the idle state, for a file four times as large as the object store.

    Own processes + raylet + object store, see `memory.Use`.
    """
    case = CASES["huge"]
    lines = ["| | worker, MiB | driver's node, MiB | s |", "|---|---|---|---|"]
    parts = "{own:.0f} + {raylet:.0f} + {store:.0f}"
    for path in paths:
        # A fresh cluster each: pages of the object store that were touched once stay.
        with Hosts([case, CASES["tiny"]], SMALL_STORE_BYTES, None) as hosts:
            hosts.send(path, CASES["tiny"])  # imports and first connections are not the file's
            watched = {name: hosts.cluster.host(name) for name in (WORKER, HEAD)}
            with Watch(watched) as watch:
                seconds = hosts.send(path, case)["seconds"]
        extra = {
            name: parts.format(
                own=used.own_bytes / MIB,
                raylet=used.raylet_bytes / MIB,
                store=used.store_bytes / MIB,
            )
            for name, used in watch.extra.items()
        }
        lines.append(f"| {PATHS[path]} | {extra[WORKER]} | {extra[HEAD]} | {seconds:.2f} |")
    return "\n".join(lines)


def machine() -> str:
    """The machine in words."""
    models = [
        line.split(":")[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    total_kib = int(Path("/proc/meminfo").read_text().split()[1])
    kernel = subprocess.run(["uname", "-r"], capture_output=True, text=True, check=True)
    return (
        f"{os.cpu_count()} cores ({models[0] if models else 'unknown'}), "
        f"{total_kib / MIB:.0f} GiB, Linux {kernel.stdout.strip()}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two rounds instead of five")
    parser.add_argument("--old-python", type=Path, help="Python with Ray 2.6.3; without: not it")
    parser.add_argument("--cases", nargs="*", default=list(MEASURED), choices=list(CASES))
    parser.add_argument("--paths", nargs="*", default=list(PATHS), choices=list(PATHS))
    parser.add_argument("--only", choices=("speed", "memory"))
    arguments = parser.parse_args()
    rounds = 2 if arguments.quick else 5
    old_python = arguments.old_python.absolute() if arguments.old_python else None
    paths = [p for p in arguments.paths if old_python or p != "old"]
    print(f"{machine()}; {time.strftime('%Y-%m-%d')}")
    if arguments.only != "memory":
        cases = [CASES[name] for name in arguments.cases]
        with Hosts(cases, STORE_BYTES, old_python) as hosts:
            print(f"driver's HOME on {hosts.file_system()}; medians of {rounds}")
            print(speed_table(measure(hosts, cases, paths, rounds)), flush=True)
    if arguments.only != "speed":
        print(f"\n**{CASES['huge'].title}, object stores of {SMALL_STORE_BYTES // MIB} MiB**\n")
        print(memory_table([p for p in paths if p in ("report", "ours", "syncer")]))


if __name__ == "__main__":
    main()
