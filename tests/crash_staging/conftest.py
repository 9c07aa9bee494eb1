from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tune_sync.fastpath import spares


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory: each crash makes and removes hundreds."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        yield Path(made)


@pytest.fixture(autouse=True)
def small_spare_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of some bytes are used again, too."""
    monkeypatch.setattr(spares, "LARGE_BYTES", 16)
