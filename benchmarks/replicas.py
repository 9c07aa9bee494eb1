"""Copies in another host's memory measured: python -m benchmarks.replicas [--rounds N] [--quick]

On isolated hosts: how long `tune.report` blocks, how long a restore takes, and eight readers at
once. All rows of a table in one run, interleaved, medians. Prints tables in Markdown. Needs root.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.buckets import ANSWER_TIMEOUT_S, NETS
from benchmarks.cases import CASES, make_files
from benchmarks.default_sync import machine
from benchmarks.hosts import HEAD, fresh_place
from benchmarks.orders import Helper
from benchmarks.replicas_reports import KINDS, NOTHING
from benchmarks.replicas_restores import EIGHT, FROM, READERS
from benchmarks.s3_sink import READY
from tests.bed import Cluster

SOURCES, STORE = "/srv/sources", "store"
TITLES = {
    NOTHING: "a report without a checkpoint",
    "disk": '`"staged"` on the disk, `tune_sync.Checkpoint`',
    "memory": '`"staged"` in memory, `staged_checkpoint()`',
    "replicated": '`"replicated"`, `staged_checkpoint()`, chosen: TCP',
    "tcp": '`"replicated"`, `staged_checkpoint()`, TCP',
    "object_store": '`"replicated"`, `staged_checkpoint()`, object store',
    "stored": '`"stored"` on the driver\'s node, `tune_sync.Checkpoint`',
    "here": "this node's memory, `tune_sync.Checkpoint`: its files, opened",
    "here copied": "this node's memory, Ray's `Checkpoint`: a copy",
    "home": "the home node's memory, `tune_sync.Checkpoint`: into this node's memory",
    "home copied": "the home node's memory, Ray's `Checkpoint`: that, and a copy",
    "s3": "the bucket",
    "one": "one reader",
    "eight": "eight readers, each a copy of its own",
    "shared": "eight readers of one node, Ray's `Checkpoint.as_directory()`",
    "brought one": "one reader, `fast_path`, `tune_sync.Checkpoint.as_directory()`",
    "brought": "eight readers of one node, the same",
}
PARTS = ("blocks", "restore", "readers")
GIB = 1 << 30
# Of each host. A run keeps its newest checkpoint in memory, and makes the next one beside it.
SHM_BYTES = {"blocks": 8 * GIB, "restore": 5 * GIB, "readers": 5 * GIB}
DISK_BYTES = 10 * GIB  # copies of eight readers

Found = dict[str, list[dict[str, Any]]]  # row -> answers


class Hosts:
    """A driver's host, two workers, and a sink that stands in for S3 on a host of its own.

    HOME of the driver and of the worker that reports lie on the machine's disk.

    Args:
        stack: Ends them.
        part: What is measured.
        cases: Names of what is sent.
        net: Which of `buckets.NETS`.
    """

    def __init__(self, stack: ExitStack, part: str, cases: list[str], net: str) -> None:
        self._stack = stack
        self._start(part, cases, net)

    def ask(self, row: str, case: str) -> dict[str, Any]:
        """Let one row be done once."""
        found = self._runs.ask(row=row, source=f"{SOURCES}/{case}")
        print(f"# {case} {row} {json.dumps(found)}", file=sys.stderr)
        return found

    def _start(self, part: str, cases: list[str], net: str) -> None:
        place = Path(self._stack.enter_context(fresh_place()))
        for name in {*cases, "tiny"}:
            make_files(place / "sources", CASES[name])
        mounts = {name: {SOURCES: place / "sources"} for name in (HEAD, "w1", "w2", STORE)}
        self._cluster = self._stack.enter_context(
            Cluster(
                worker_count=1 if part == "blocks" else 2, worker_cpus=8, bare_hosts=[STORE],
                keep_homes=(HEAD, "w1"), shm_bytes=SHM_BYTES[part], disk_bytes=DISK_BYTES,
                mounts=mounts,
            )
        )  # fmt: skip
        argv = ["-m", "benchmarks.replicas_reports"]
        if part != "blocks":
            argv = ["-m", "benchmarks.replicas_restores", self._start_sink(net)]
        self._runs = Helper("runs", self._popen(HEAD, argv), 2 * ANSWER_TIMEOUT_S)
        self._stack.callback(self._runs.close)

    def _start_sink(self, net: str) -> str:
        address = self._cluster.addresses[STORE]
        argv = ["-m", "benchmarks.s3_sink", SOURCES, "--address", address, *NETS[net][1]]
        sink = self._popen(STORE, argv)
        ready = sink.stdout.readline() if sink.stdout else ""
        return f"http://{address}:{ready.removeprefix(READY).strip()}"

    def _popen(self, host: str, argv: list[str]) -> subprocess.Popen[str]:
        log = self._stack.enter_context((self._cluster.dir / f"{argv[1]}.log").open("a"))
        argv = [str(self._cluster.python), *argv]
        return self._cluster.popen(
            host, argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )


def measure(running: Hosts, rows: list[str], case: str, rounds: int) -> Found:
    """Let all rows be done, one round after the other."""
    found: Found = {}
    for _ in range(rounds):
        for row in rows:
            found.setdefault(row, []).append(running.ask(row, case))
    return found


def blocks_table(found: Found) -> str:
    """How long each kind of report blocks."""
    medians = _medians(found)
    lines = ["| | blocks, s | range | more than without, ms |", "|---|---|---|---|"]
    for row, answers in found.items():
        more_ms = "" if row == NOTHING else f"{(medians[row] - medians[NOTHING]) * 1e3:.1f}"
        lines.append(f"| {TITLES[row]} | {medians[row]:.4f} | {_range(answers)} | {more_ms} |")
    return "\n".join(lines)


def restore_table(found: Found, size_bytes: int) -> str:
    """How long it takes until a checkpoint is open."""
    lines = ["| | s | range | GB/s |", "|---|---|---|---|"]
    for row, median_s in _medians(found).items():
        speed = f"{size_bytes / median_s / 1e9:.2f}" if row != "here" else ""  # nothing is moved
        lines.append(f"| {TITLES[row]} | {median_s:.4f} | {_range(found[row])} | {speed} |")
    return "\n".join(lines)


def readers_table(found: Found, size_bytes: int) -> str:
    """How long it takes until the last reader has it all."""
    medians = _medians(found)
    lines = ["| | s | range | GB/s, all together | times one |", "|---|---|---|---|---|"]
    for row, median_s in medians.items():
        readers_count = EIGHT if row == "eight" else 1
        row_of = [
            TITLES[row], f"{median_s:.3f}", _range(found[row]),
            f"{readers_count * size_bytes / median_s / 1e9:.2f}",
            f"{median_s / medians['one']:.2f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(row_of) + " |")
    return "\n".join(lines)


def _medians(found: Found) -> dict[str, float]:
    return {row: statistics.median(a["seconds"] for a in got) for row, got in found.items()}


def _range(answers: list[dict[str, Any]]) -> str:
    seconds = [answer["seconds"] for answer in answers]
    return f"{min(seconds):.4f} to {max(seconds):.4f}"


def show(part: str, running: Hosts, case: str, rounds: int) -> None:
    """Measure a part with one case, and print its table."""
    title = CASES[case].title
    if part == "blocks":
        found = measure(running, list(KINDS), case, rounds)
        print(f"\n**tune.report of {title}**\n\n{blocks_table(found)}", flush=True)
        return
    size_bytes = CASES[case].total_bytes
    if part == "restore":
        table = restore_table(measure(running, list(FROM), case, rounds), size_bytes)
        print(f"\n**Restore of {title}**\n\n{table}", flush=True)
        return
    table = readers_table(measure(running, list(READERS), case, rounds), size_bytes)
    print(f"\n**{title}, read from a bucket**\n\n{table}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often, in each table")
    parser.add_argument("--quick", action="store_true", help="one round of small checkpoints")
    parser.add_argument("--net", default="slow", choices=list(NETS))
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--cases", nargs="*", choices=list(CASES))
    given = parser.parse_args()
    rounds = 1 if given.quick else given.rounds
    usual = {"blocks": ["small", "large"], "restore": ["large"], "readers": ["medium", "large"]}
    print(f"{machine()}; {time.strftime('%Y-%m-%d')}; {NETS[given.net][0]}; medians of {rounds}")
    for part in given.parts:
        cases = given.cases or (["small"] if given.quick else usual[part])
        with ExitStack() as stack:
            running = Hosts(stack, part, cases, given.net)
            for case in cases:
                show(part, running, case, rounds)


if __name__ == "__main__":
    main()
