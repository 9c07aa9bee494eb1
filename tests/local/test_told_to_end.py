"""A driver that is told to end by SIGTERM, as a batch system does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bed.ray_node import PYTHONPATH
from tests.hosts.searches import wait_for

TIMEOUT_S = 120.0


def test_nothing_of_ours_starts_ray_again_in_a_process_that_ends(tmp_path: Path) -> None:
    storage, said = tmp_path / "results", tmp_path / "said"
    sessions = Path(tempfile.mkdtemp(prefix="end"))  # a socket's path in it has to be short
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, "RAY_TMPDIR": str(sessions)}
    env.pop("RAY_ADDRESS", None)
    argv = [sys.executable, "-m", "tests.local.drivers.told_to_end", str(storage)]
    with said.open("wb") as output:
        driver = subprocess.Popen(argv, env=env, stdout=output, stderr=output)
    try:
        published = storage / "x/.tune_sync/manifests"
        wait_for(lambda: len([*published.glob("*/*.json")]) > 2, "checkpoints", TIMEOUT_S)
        driver.terminate()
        driver.wait(TIMEOUT_S)
        started = [p.name for p in sessions.glob("ray/session_2*")]
    finally:
        driver.kill()
        driver.wait()
        shutil.rmtree(sessions, ignore_errors=True)
    assert len(started) == 1, started
    assert "cannot write to the destination" not in said.read_text()
