"""Population Based Training with `sync_on_checkpoint=False`: what a clone needs travels at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local.drivers.population import STEPS
from tests.local.own_ray import own_ray
from tests.local.test_periods import published

TIMEOUT_S = 120.0


@pytest.mark.slow
def test_a_clone_on_another_node_gets_a_checkpoint_whose_turn_has_not_come(tmp_path: Path) -> None:
    """Two nodes, which take longer to start than one: on one, it would be read from its disk."""
    far = tmp_path / "far"
    argv = [sys.executable, "-m", "tests.local.drivers.population", far, tmp_path / "staging"]
    with own_ray() as env:
        done = subprocess.run(
            argv, env=env, text=True, check=False, capture_output=True, timeout=TIMEOUT_S
        )
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = (x for x in done.stdout.splitlines() if x.startswith("RESULT "))
    trials = json.loads(line.removeprefix("RESULT "))
    ways = [(trial["directory"], *way) for trial in trials for way in trial["ways"]]
    clones = [(came, node) for directory, came, node in ways if came["trial"] not in directory]
    assert clones, "no exploit"
    assert all(came["on"] != node for came, node in clones), "it was read from the node's own disk"
    assert [trial["step"] for trial in trials] == [STEPS - 1] * 2
    numbers = published(far / "x").values()
    assert all(1 <= len(of_trial) < STEPS for of_trial in numbers), "not all of them travelled"
