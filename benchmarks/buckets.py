"""Buckets measured: python -m benchmarks.buckets [--rounds N] [--s5cmd PROGRAM]

Against a sink of our own that takes and gives bytes faster than the clients, without a limit and
with the latency and the speed of a real store. All contenders in one run, interleaved, medians.
Prints tables in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, MIB, Case, make_files
from benchmarks.default_sync import machine
from benchmarks.orders import Helper
from benchmarks.s3_sink import READY


@dataclass(frozen=True)
class Contender:
    """Who moves the files.

    Attributes:
        title: As the table shows it.
        helper: The process: a kind of `bucket_trial`, or "tools".
        order: Further fields of its orders.
        ways: What it can do.
    """

    title: str
    helper: str
    order: dict[str, Any]
    ways: tuple[str, ...] = ("up", "down")


TOOL, RAY = "tools", "ray"
CONTENDERS = {
    "report": Contender(
        "ours: `tune.report`, Ray's `Checkpoint`", "ours", {"ours": False}, ("up", "down", "search")
    ),
    "ours": Contender(
        "ours: `tune.report`, `tune_sync.Checkpoint`", "ours", {"ours": True}, ("up", "search")
    ),
    "sync": Contender("ours: `CloudSyncer`", TOOL, {"who": "sync"}),
    "ray": Contender("Ray, pyarrow", "ray", {"ours": False}, ("up", "down", "search")),
    "s3fs": Contender("Ray, s3fs", "s3fs", {"ours": False}, ("up", "down", "search")),
    "s5cmd": Contender("s5cmd", TOOL, {"who": "s5cmd"}),
    "obstore": Contender("obstore alone", TOOL, {"who": "obstore"}),
}
BARE = ("s5cmd", "obstore")  # what bytes can do, without Ray, order or manifest
NETS = {
    "fast": ("no limit", ()),
    "slow": ("20 ms, 100 MB/s a connection", ("--latency-ms", "20", "--mb-per-s", "100")),
}
WAYS = {"up": "up", "down": "down", "search": "8 trials x 10 checkpoints of"}
ANSWER_TIMEOUT_S = 300.0

Found = dict[str, list[dict[str, Any]]]  # contender -> answers


class Stage:
    """A sink, and the processes that work against it.

    Args:
        place: A directory in memory.
        net: Which of `NETS`.
        s5cmd: Path of the program, or "".
    """

    def __init__(self, place: Path, net: str, s5cmd: str) -> None:
        self._place = place
        self._s5cmd = s5cmd
        self._helpers: dict[str, Helper] = {}
        module = [sys.executable, "-m", "benchmarks.s3_sink", str(place / "sources")]
        self._sink = _start([*module, *NETS[net][1]])
        ready = self._sink.stdout.readline() if self._sink.stdout else ""
        self._endpoint = f"http://127.0.0.1:{ready.removeprefix(READY).strip()}"

    def ask(self, name: str, way: str, case: Case) -> dict[str, Any]:
        """Let a contender move a case's files, and check what came."""
        contender = CONTENDERS[name]
        prefix, source = f"tools/{name}/{case.name}", self._place / "sources" / case.name
        target = self._place / "down"
        directory = target if way == "down" else source
        if way == "down":
            target.mkdir()
        helper = f"{TOOL} {name}" if contender.helper == TOOL else contender.helper
        found = self._helper(helper).ask(
            way=way, directory=str(directory), case=case.name, prefix=prefix, **contender.order
        )
        if way == "down":
            sizes = [path.stat().st_size for path in target.rglob("*") if path.is_file()]
            if (len(sizes), sum(sizes)) != (case.file_count, case.total_bytes):
                raise AssertionError(f"{name}: {len(sizes)} files, {sum(sizes)} bytes came")
            shutil.rmtree(target)
        return found

    def close(self) -> None:
        """End all processes."""
        for helper in self._helpers.values():
            helper.close()
        if self._sink.stdin is not None:
            self._sink.stdin.close()
        self._sink.wait(20)

    def _helper(self, name: str) -> Helper:
        if name not in self._helpers:
            arguments = (
                ["bucket_tools", self._endpoint, self._s5cmd]
                if name.startswith(TOOL)
                else ["bucket_trial", name, self._endpoint]
            )
            command = [sys.executable, "-m", f"benchmarks.{arguments[0]}", *arguments[1:]]
            self._helpers[name] = Helper(name, _start(command), ANSWER_TIMEOUT_S)
            if not name.startswith(TOOL):
                self._warm_up(name)
        return self._helpers[name]

    def _warm_up(self, name: str) -> None:
        """Imports and first connections are not the files'."""
        tiny = self._place / "sources" / "tiny"
        self._helpers[name].ask(way="up", directory=str(tiny), case="tiny", ours=False)


def measure(stage: Stage, case: Case, way: str, names: list[str], rounds: int) -> Found:
    """Let all contenders move a case, one round after the other."""
    found: Found = {}
    for number in range(rounds):
        for name in names:
            answer = stage.ask(name, way, case)
            print(f"# {case.name} {way} {number} {name} {json.dumps(answer)}", file=sys.stderr)
            found.setdefault(name, []).append(answer)
    return found


def table(case: Case, found: Found) -> str:
    """A Markdown table of one case and way."""
    medians = {n: statistics.median(a["seconds"] for a in got) for n, got in found.items()}
    best = min((medians[n] for n in BARE if n in medians), default=None)
    lines = ["| | s | range | GB/s | times Ray | of the best tool | blocks, s | memory, MiB |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for name, answers in found.items():
        seconds = [answer["seconds"] for answer in answers]
        extra = max(answer.get("extra_bytes", 0) for answer in answers)
        blocked = [answer["blocked_s"] for answer in answers if "blocked_s" in answer]
        row = [
            CONTENDERS[name].title, f"{medians[name]:.3f}",
            f"{min(seconds):.3f} to {max(seconds):.3f}",
            f"{case.total_bytes / medians[name] / 1e9:.2f}" if not blocked else "",
            f"{medians[RAY] / medians[name]:.2f}" if RAY in medians else "",
            f"{best / medians[name]:.2f}" if best is not None else "",
            f"{statistics.median(blocked):.3f}" if blocked else "",
            f"{extra / MIB:.0f}" if extra else "",
        ]  # fmt: skip
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


@contextmanager
def _place(cases: list[str]) -> Iterator[Path]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="ts-buckets-", dir=memory) as place:
        for name in {*cases, "tiny"}:
            make_files(Path(place, "sources"), CASES[name])
        yield Path(place)


def _start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        stderr=None if "TS_BENCH_LOUD" in os.environ else subprocess.DEVNULL,
    )  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often, in each table")
    parser.add_argument("--s5cmd", default=shutil.which("s5cmd") or "", help="the program")
    parser.add_argument("--nets", nargs="*", default=list(NETS), choices=list(NETS))
    parser.add_argument("--cases", nargs="*", default=["large", "many"], choices=list(CASES))
    parser.add_argument("--ways", nargs="*", default=["up", "down"], choices=list(WAYS))
    parser.add_argument("--contenders", nargs="*", default=list(CONTENDERS), choices=CONTENDERS)
    arguments = parser.parse_args()
    if "down" in arguments.ways and "up" not in arguments.ways:
        parser.error("--ways down reads what up has put there: give --ways up down")
    rounds = arguments.rounds
    names = [n for n in arguments.contenders if n != "s5cmd" or arguments.s5cmd]
    print(f"{machine()}; {time.strftime('%Y-%m-%d')}; medians of {rounds}")
    with _place(arguments.cases) as place:
        for net in arguments.nets:
            stage = Stage(place, net, arguments.s5cmd)
            try:
                for case in [CASES[name] for name in arguments.cases]:
                    for way in arguments.ways:
                        able = [n for n in names if way in CONTENDERS[n].ways]
                        found = measure(stage, case, way, able, rounds)
                        print(f"\n**{WAYS[way]} {case.title}; {NETS[net][0]}**\n")
                        print(table(case, found), flush=True)
            finally:
                stage.close()


if __name__ == "__main__":
    main()
