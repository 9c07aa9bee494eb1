from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# The environment with the lowest Ray has no PyTorch; `test_the_tests_of_pytorch_run` is for others.
if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_torch_*"]


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    """A directory in shared memory that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix=f"tune_sync-test-{os.getpid()}-"))
    yield folder
    shutil.rmtree(folder)
