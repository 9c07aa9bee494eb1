from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory: each crash makes and removes hundreds."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        yield Path(made)
