from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    """A directory in shared memory that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix=f"tune_sync-test-{os.getpid()}-"))
    yield folder
    shutil.rmtree(folder)
