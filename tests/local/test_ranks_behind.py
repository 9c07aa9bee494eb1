"""A checkpoint of several ranks whose parts are sent after the driver's death is published."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.searches import wait_for
from tests.local.own_ray import own_ray
from tests.local.test_periods import number_of, published

STARTS_S, TIMEOUT_S = 180, 240.0
FAR_ENOUGH = 4
V1 = {"RAY_TRAIN_V2_ENABLED": "0"}


@pytest.fixture
def env() -> Iterator[dict[str, str]]:
    """For a driver with a Ray of its own."""
    with own_ray() as found:
        yield {**found, **V1}


@pytest.mark.slow
def test_a_killed_driver_had_told_the_nodes_which_parts_there_are(
    env: dict[str, str], tmp_path: Path
) -> None:
    """A Ray of its own, with another generation of Ray Train than the other tests."""
    far, staging = tmp_path / "far", tmp_path / "staging"
    argv = [sys.executable, "-m", "tests.local.drivers.ranks_behind", str(far), str(staging)]

    def newest_noted() -> int:
        # Directories go all the time while this looks, which a walk takes as it comes.
        noted = (Path(top) for top, _, files in os.walk(staging) if "parts.json" in files)
        named = (path.parent for path in noted if path.parent.name.startswith("checkpoint_"))
        return max(map(number_of, named), default=-1)

    first = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: newest_noted() >= FAR_ENOUGH, "parts that are noted", STARTS_S)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert not [n for numbers in published(far / "x").values() for n in numbers if n]

    done = subprocess.run(
        [*argv, "restore"],
        env=env,
        text=True,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = (x for x in done.stdout.splitlines() if x.startswith("RESULT "))
    told = json.loads(line.removeprefix("RESULT "))
    assert told["at"] > FAR_ENOUGH - 1
    assert {told["at"] - 1, told["at"] + 1} <= set(told["steps"])  # between them no turn comes
    assert set(map(tuple, told["files"].values())) == {("rank0.json", "rank1.json")}
