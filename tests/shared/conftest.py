"""Directories mounted through FUSE, with faults. A machine without FUSE fails these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.weakfs import Weakness, weak_mount


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts one directory as often as called, as that many nodes would."""
    (tmp_path / "backing").mkdir()
    with ExitStack() as stack:
        count = 0

        def mount(**faults: object) -> Path:
            nonlocal count
            count += 1
            weakness = Weakness(**faults)  # type: ignore[arg-type]
            at = tmp_path / f"node{count}"
            return stack.enter_context(weak_mount(tmp_path / "backing", at, weakness))

        yield mount
