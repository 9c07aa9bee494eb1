"""What several unit tests need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tune_sync.run import Run


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """Put runs in that the test opened: they are closed after it."""
    opened: list[Run] = []
    yield opened
    for run in opened:
        run.close()
