"""A search on three isolated hosts that loses one of them half way. Run by `scripts/demo`.

    python -m examples.demo [--no-isolation]

Ends with 0 only if the trials of the lost host went on elsewhere from their last checkpoint,
everything is complete on the driver's disk, and plain Ray restores it.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from examples.demo_parts import hosts as places
from examples.demo_parts.names import BEGINS, LOST, NAME, REPORT
from examples.demo_parts.waiting import Waiting

# The host on which a trial first gets so far is killed.
KILL_AT_EPOCH = 5
PROGRESS = re.compile(rf"trial \d+ on (w\d): epoch +{KILL_AT_EPOCH},")
COPY = Path("demo_results")
NO_ISOLATION = """
!!! ISOLATION IS OFF: the three "hosts" are Ray nodes of one machine. They share disk, memory
!!! and network, so this shows how it looks, but does not prove that nothing has to be shared.
"""
START_S = time.monotonic()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.demo")
    parser.add_argument("--no-isolation", action="store_true", help="use Ray's one-machine cluster")
    isolated = not parser.parse_args().no_isolation
    if isolated and (reasons := places.why_not_isolated()):
        isolated = False
        say(f"isolated hosts cannot be made here; missing: {'; '.join(reasons)}")
    if not isolated:
        print(NO_ISOLATION, flush=True)
    say("starting three hosts: head (the driver's), w1 and w2 with 2 CPUs each")
    WAITING.waits_for("Ray to start on the three hosts, and to join them")
    with tempfile.TemporaryFile("w+") as errors, WAITING:
        with places.isolated_hosts() if isolated else places.one_machine() as hosts:
            if isolated:
                say("checked: no host sees another's HOME, /tmp, /dev/shm or processes")
            failed = run(hosts, errors)
            WAITING.waits_for("the three hosts to end")
        if failed:
            errors.seek(0)
            print(errors.read()[-6000:], file=sys.stderr)
    say(f"FAILED: {failed}" if failed else summary())
    if not isolated:
        print(NO_ISOLATION, flush=True)
    return 1 if failed else 0


def run(hosts: places.Hosts, errors: IO[str]) -> str:
    """All that the demo shows; returns what went wrong, or ""."""
    headline("a search: 8 trials on w1 and w2, a checkpoint every epoch")
    WAITING.waits_for("the driver to import Ray, and to join the cluster")
    if show(hosts, "search", errors, kills=True):
        return "the search"
    if wrong := what_is_wrong_with(resumes(hosts)):
        return wrong
    headline("what is on the driver's disk")
    WAITING.waits_for("all checkpoints to be compared with their manifests")
    if show(hosts, "check", errors):
        return "not everything is on the driver's disk"
    headline("a new driver: ray.tune.Tuner.restore")
    WAITING.waits_for("the new driver to import Ray, and to read the experiment")
    if show(hosts, "restore", errors):
        return "the restore"
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(hosts.driver_home / "ray_results" / NAME, COPY / NAME)
    shutil.copy(hosts.driver_home / REPORT, COPY)
    return ""


def show(hosts: places.Hosts, part: str, errors: IO[str], *, kills: bool = False) -> int:
    """Run a part on the head and show its lines as they come; returns its exit code."""
    argv = [sys.executable, "-u", "-m", f"examples.demo_parts.{part}"]
    with hosts.start(argv, errors) as process:
        for line in process.stdout or ():
            say(line.rstrip())
            if line.rstrip() == BEGINS:
                WAITING.waits_for("Ray to start a process for each of the first four trials")
            elif LOST in line:
                WAITING.waits_for("trials on the other host to end, and the lost ones to begin")
            elif " resumes on " in line:
                WAITING.waits_for("the trials that are left")
            victim = PROGRESS.match(line) if kills else None
            if victim:
                kills = False
                kill(hosts, victim[1])
    return process.returncode


def kill(hosts: places.Hosts, victim: str) -> None:
    """Kill a worker, and say what follows."""
    hosts.kill(victim)
    (other,) = {*places.WORKERS} - {victim}
    say(f"*** {victim} is killed without warning, with all that is on it ***")
    say(f"its trials queue, once Ray has noticed, until others have ended: {other} is the only")
    say(f"host that is left, and its {places.WORKER_CPUS} CPUs are busy")
    WAITING.waits_for(f"Ray to notice that {victim} is gone")


def resumes(hosts: places.Hosts) -> list[dict[str, Any]]:
    """What the search says of trials that went on elsewhere."""
    found: list[dict[str, Any]] = json.loads((hosts.driver_home / REPORT).read_text())["resumes"]
    return found


def what_is_wrong_with(found: list[dict[str, Any]]) -> str:
    if not any(resume["last"] for resume in found):
        return "no trial had to resume: the killed host had none left that had a checkpoint"
    for resume in found:
        if resume["from"] != resume["last"]:
            return f"a trial did not resume from its last checkpoint: {resume}"
    return ""


def summary() -> str:
    report = json.loads((COPY / REPORT).read_text())
    resumed = ", ".join(str(r["trial"]) for r in report["resumes"] if r["last"])
    return (
        f"DONE: {report['trials']} trials, {len(report['stored'])} checkpoints, all complete; "
        f"trials that resumed after the loss of a host: {resumed}\n"
        f"A copy of the experiment is in {COPY.resolve() / NAME}"
    )


def headline(text: str) -> None:
    print(f"\n=== {text}", flush=True)


def say(text: str) -> None:
    for line in text.splitlines():
        # At once, with its end: another thread says what is waited for.
        print(f"{time.monotonic() - START_S:6.1f} s  {line}\n", end="", flush=True)
    WAITING.heard()


WAITING = Waiting(say)


if __name__ == "__main__":
    sys.exit(main())
