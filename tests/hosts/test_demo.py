"""The demo, as people start it: what it shows is what it says at the end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from examples.demo_parts.names import NAME, TRIAL_COUNT
from examples.demo_parts.waiting import QUIET_S
from tests.meta.repo import ROOT

SAID_AT = re.compile(r"^ *(\d+\.\d) s  ", re.MULTILINE)
# A line of the tree: a trial's directory, and its checkpoints.
TRIAL = re.compile(
    r"^ *\d+\.\d s    (trial_\S+)/  (checkpoint_\d{6}) … (\d\d), \d+ files  \((\S+) MB\)$",
    re.MULTILINE,
)
RESUMES = re.compile(r"trial (\d) resumes on (w\d) at epoch (\d+) from checkpoint_(\d{6})")


def run_demo(cwd: Path, *args: str) -> str:
    """What the demo prints."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-u", "-m", "examples.demo", *args],
        cwd=cwd, env={**env, "PYTHONPATH": str(ROOT)}, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def check(output: str, cwd: Path) -> None:
    killed = re.search(r"\*\*\* (w\d) is killed", output)
    assert killed, output
    resumes = RESUMES.findall(output)
    assert resumes, output
    assert "its trials queue" in output
    said_s = [0.0, *map(float, SAID_AT.findall(output))]
    silences_s = [later - earlier for earlier, later in pairwise(said_s)]
    assert max(silences_s) <= QUIET_S + 3, output
    for _, host, epoch, checkpoint in resumes:
        assert host != killed[1]
        assert int(epoch) == int(checkpoint) + 2  # epoch 1 is checkpoint 0
    complete = re.search(r"complete: (\d+) checkpoints", output)
    assert complete, output
    check_tree(output, cwd / "demo_results" / NAME, int(complete[1]))
    assert f"restored {TRIAL_COUNT} trials with ray.tune.Tuner.restore" in output
    assert "DONE" in output


def check_tree(output: str, copy: Path, checkpoint_count: int) -> None:
    """What is shown of the driver's disk is what is on it."""
    trials = {path.name: sorted(path.glob("checkpoint_*")) for path in copy.glob("trial_*")}
    assert len(trials) == TRIAL_COUNT
    assert sum(map(len, trials.values())) == checkpoint_count > TRIAL_COUNT
    assert f"~/ray_results/{NAME}/" in output
    shown = {trial: span for trial, *span, _ in TRIAL.findall(output)}
    assert shown == {trial: [kept[0].name, kept[-1].name[-2:]] for trial, kept in trials.items()}
    assert all(float(size_mb) > 0 for *_, size_mb in TRIAL.findall(output))
    assert re.search(r" s    \.tune_sync/  \(\d+\.\d\d MB\)$", output, re.MULTILINE)


@pytest.mark.hosts
def test_demo_on_isolated_hosts(tmp_path: Path) -> None:
    output = run_demo(tmp_path)
    check(output, tmp_path)
    assert "ISOLATION IS OFF" not in output


@pytest.mark.slow
def test_demo_on_one_machine_says_that_isolation_is_off(tmp_path: Path) -> None:
    output = run_demo(tmp_path, "--no-isolation")
    check(output, tmp_path)
    assert output.count("ISOLATION IS OFF") == 2
