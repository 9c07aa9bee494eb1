"""What several unit tests need."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_left_behind import NoAgent
from tests.unit.test_node_sender import Shaky
from tune_sync.behind.node_sender import NodeSender
from tune_sync.behind.staging_home import StagingHome
from tune_sync.run import Run


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """That of pytest, or with `in_shared_memory` one there: so much is free on few disks."""
    if request.node.get_closest_marker("in_shared_memory") is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """Put runs in that the test opened: they are closed after it."""
    opened: list[Run] = []
    yield opened
    for run in opened:
        run.close()


# What is handed over on a node, and sent: tests of other things have their own of these names.


@pytest.fixture
def home(tmp_path: Path) -> Shaky:
    return Shaky(tmp_path / "home")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run" / "node"


@pytest.fixture
def local(home: Shaky, root: Path) -> StagingHome:
    return StagingHome(home, root, NoAgent(), "node1")


@pytest.fixture
def make(root: Path, home: Shaky) -> Iterator[Callable[..., NodeSender]]:
    made: list[NodeSender] = []

    def sender(limit_bytes: int = 1 << 30, **more: Any) -> NodeSender:
        made.append(NodeSender(root, lambda: home, limit_bytes, first_pause_s=0.01, **more))
        return made[-1]

    yield sender
    for one in made:
        one.end()
