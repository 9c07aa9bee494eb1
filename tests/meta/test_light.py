"""What tests leave away in their drivers to take less time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.bed.ray_node import PYTHONPATH

PROGRAM = """
import importlib.util, sys
import tensorboardX
print("torch" in sys.modules, importlib.util.find_spec("torch") is not None)
"""


@pytest.mark.parametrize(("path", "loaded"), [(PYTHONPATH, "False"), ("", "True")])
def test_tensorboardx_alone_gets_no_pytorch_in_drivers_of_tests(path: str, loaded: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [loaded, "True"]
