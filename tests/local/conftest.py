"""Ray on this machine alone, for what needs no isolation: driver and trials share its disks."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest
import ray

CPU_COUNT = 2

# The environment with the lowest Ray has no PyTorch; tests/fastpath/test_imports.py is for others.
if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_torch_*"]


@pytest.fixture(scope="package")
def local_ray() -> Iterator[None]:
    """One Ray for the tests of this directory."""
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    ray.init("local", num_cpus=CPU_COUNT, include_dashboard=False, object_store_memory=200_000_000)
    yield
    ray.shutdown()
