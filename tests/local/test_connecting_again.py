"""A process that connects to a running cluster again starts further runs there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import ray

from tests.bed.ray_node import PYTHONPATH

TIMEOUT_S = 200.0


def test_each_connection_has_agents_of_its_own(local_ray: None, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, "RAY_AIR_NEW_OUTPUT": "0"}
    env["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    argv = [sys.executable, "-m", "tests.local.drivers.connecting_again", str(tmp_path)]
    done = subprocess.run(
        argv, env=env, text=True, capture_output=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = json.loads(done.stdout.splitlines()[-1])
    assert one[0] != two[0]
    assert (one[1:], two[1:]) == (
        [{"secret": "one"}, 1, True],
        [{"secret": "two"}, 1, True],
    )
