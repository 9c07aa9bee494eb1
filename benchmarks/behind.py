"""Write-behind measured: python -m benchmarks.behind [--rounds N] [--quick]

How long training waits: against a sink of our own that speaks S3, 20 ms away, with 100 MB/s a
connection. All rows of a table in one run, interleaved, medians. Prints tables in Markdown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.behind_trial import (
    GIVEN,
    HOME,
    NOTHING,
    OURS,
    PERIODIC,
    PLAIN,
    RAY,
    STORED,
    WRITTEN,
)
from benchmarks.buckets import ANSWER_TIMEOUT_S, NETS, _start
from benchmarks.cases import CASES, make_files
from benchmarks.default_sync import machine
from benchmarks.orders import Helper
from benchmarks.s3_sink import READY

TITLES = {
    NOTHING: "a report without a checkpoint",
    RAY: "Ray's own path, pyarrow",
    STORED: '`wait_for="stored"`, `tune_sync.Checkpoint`',
    PLAIN: '`"staged"`, `tune.Checkpoint.from_directory`',
    OURS: '`"staged"`, `tune_sync.Checkpoint.from_directory`',
    GIVEN: '`"staged"`, `staged_checkpoint()`',
    PERIODIC: '`"staged"`, `sync_on_checkpoint=False`',
    HOME: "no `upload_dir`: the driver's node",
    "copy": "limit: `shutil.copytree`, not durable",
    "synced": "limit: `shutil.copytree`, then fsync",
    "rename": "limit: a rename",
    WRITTEN: "files written, not reported",
}
BARE = ("copy", "synced", "rename")
BLOCKS = (NOTHING, RAY, STORED, PLAIN, OURS, GIVEN, *BARE)
RUNS = (NOTHING, WRITTEN, RAY, STORED, PLAIN, OURS, GIVEN)
LOOPS = (STORED, PLAIN, GIVEN, PERIODIC, HOME)
PARTS = ("blocks", "runs", "loop")
STEPS_COUNT = 16

Found = dict[str, list[dict[str, Any]]]  # kind -> answers


class Bench:
    """The sink, and the process whose runs report.

    Args:
        place: A directory on the disk that is staged on.
        cases: What is reported.
        net: Which of `buckets.NETS`.
    """

    def __init__(self, place: Path, cases: list[str], net: str) -> None:
        self._sources = place / "sources"
        for name in {*cases, "tiny"}:
            make_files(self._sources, CASES[name])
        command = [sys.executable, "-m", "benchmarks.s3_sink", str(self._sources), *NETS[net][1]]
        self._sink = _start(command)
        ready = self._sink.stdout.readline() if self._sink.stdout else ""
        endpoint = f"http://127.0.0.1:{ready.removeprefix(READY).strip()}"
        command = [sys.executable, "-m", "benchmarks.behind_trial", endpoint, str(place)]
        self._runs = Helper("runs", _start(command), 2 * ANSWER_TIMEOUT_S)

    def ask(self, part: str, kind: str, case: str, **more: Any) -> dict[str, Any]:
        """Let one kind do a part."""
        source = str(self._sources / case)
        found = self._runs.ask(part=part, kind=kind, source=source, **more)
        shown = {name: value for name, value in found.items() if name != "steps_s"}
        print(f"# {case} {part} {kind} {json.dumps(shown)}", file=sys.stderr)
        return found

    def close(self) -> None:
        """End both."""
        self._runs.close()
        if self._sink.stdin is not None:
            self._sink.stdin.close()
        try:
            self._sink.wait(20)
        except subprocess.TimeoutExpired:
            self._sink.kill()


def measure(bench: Bench, part: str, kinds: tuple[str, ...], rounds: int, **more: Any) -> Found:
    """Let all kinds do a part, one round after the other."""
    found: Found = {}
    for _ in range(rounds):
        for kind in kinds:
            of_disk = part == "blocks" and kind in BARE
            answer = bench.ask("bare" if of_disk else part, kind, **more)
            found.setdefault(kind, []).append(answer)
    return found


def blocks_table(found: Found) -> str:
    """How long each kind of report blocks."""
    medians = _medians(found)
    lines = ["| | blocks, s | range | more than without, ms | times a copy | times a synced copy |"]
    lines += ["|---|---|---|---|---|---|"]
    for kind, answers in found.items():
        median, is_report = medians[kind], kind not in (*BARE, NOTHING)
        more_s = median - medians[NOTHING] if is_report else median
        row = [
            TITLES[kind], f"{median:.4f}", _range(answers),
            f"{more_s * 1e3:.1f}" if is_report else "",
            f"{more_s / medians['copy']:.2f}" if kind != NOTHING else "",
            f"{more_s / medians['synced']:.2f}" if kind != NOTHING else "",
        ]  # fmt: skip
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def runs_table(found: Found) -> str:
    """How long whole runs take."""
    medians = _medians(found)
    lines = ["| | s | range | more than without checkpoints |", "|---|---|---|---|"]
    for kind, answers in found.items():
        title = "no checkpoints" if kind == NOTHING else TITLES[kind]
        more = medians[kind] / medians[NOTHING] - 1
        lines.append(f"| {title} | {medians[kind]:.2f} | {_range(answers)} | {more:.1%} |")
    return "\n".join(lines)


def loop_table(found: Found) -> str:
    """How long the control loop waits for tune_sync in a step where it does at all."""
    lines = ["| | steps | p50, ms | p99, ms | most, ms |", "|---|---|---|---|---|"]
    for kind, answers in found.items():
        steps_ms = sorted(1e3 * second for answer in answers for second in answer["steps_s"])
        shown = (steps_ms[int(part * (len(steps_ms) - 1))] for part in (0.5, 0.99, 1.0))
        numbers = " | ".join(f"{value:.2f}" for value in shown)
        lines.append(f"| {TITLES[kind]} | {len(steps_ms)} | {numbers} |")
    return "\n".join(lines)


def _medians(found: Found) -> dict[str, float]:
    return {kind: statistics.median(a["seconds"] for a in got) for kind, got in found.items()}


def _range(answers: list[dict[str, Any]]) -> str:
    seconds = [answer["seconds"] for answer in answers]
    return f"{min(seconds):.4f} to {max(seconds):.4f}"


@contextmanager
def _bench(cases: list[str], net: str, place: str | None) -> Iterator[Bench]:
    # Agents of its runs may still write there while it goes.
    with tempfile.TemporaryDirectory(
        prefix="ts-behind-", dir=place, ignore_cleanup_errors=True
    ) as directory:
        bench = Bench(Path(directory), cases, net)
        try:
            yield bench
        finally:
            bench.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often, in each table")
    parser.add_argument("--quick", action="store_true", help="one round of small checkpoints")
    parser.add_argument("--net", default="slow", choices=list(NETS))
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--cases", nargs="*", default=["small", "large"], choices=list(CASES))
    parser.add_argument("--step-s", type=float, default=2.0, help="training between checkpoints")
    parser.add_argument("--place", help="a directory on the disk that is staged on")
    given = parser.parse_args()
    rounds, cases = (1, ["tiny", "small"]) if given.quick else (given.rounds, given.cases)
    in_runs = "small" if given.quick else "medium"
    print(f"{machine()}; {time.strftime('%Y-%m-%d')}; {NETS[given.net][0]}; medians of {rounds}")
    made = [*(cases if "blocks" in given.parts else []), *([in_runs] * ("runs" in given.parts))]
    with _bench(made, given.net, given.place) as bench:
        for case in cases if "blocks" in given.parts else ():
            found = measure(bench, "blocks", BLOCKS, rounds, case=case)
            print(f"\n**tune.report of {CASES[case].title}**\n\n{blocks_table(found)}", flush=True)
        if "runs" in given.parts:
            more = {"steps": STEPS_COUNT, "step_s": 0.2 if given.quick else given.step_s}
            found = measure(bench, "run", RUNS, rounds, case=in_runs, **more)
            title = f"{STEPS_COUNT} checkpoints of {CASES[in_runs].title}, {more['step_s']} s apart"
            print(f"\n**A run with {title}**\n\n{runs_table(found)}", flush=True)
        if "loop" in given.parts:
            found = measure(bench, "loop", LOOPS, rounds, case="tiny")
            print(f"\n**The control loop in our code, a step**\n\n{loop_table(found)}", flush=True)


if __name__ == "__main__":
    main()
