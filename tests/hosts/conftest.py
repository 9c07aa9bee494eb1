"""Clusters of isolated hosts for the tests in this directory.

A machine that cannot run them fails these tests; nothing is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.bed import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head and two workers, shared by a module's tests: leave it as you found it."""
    with Cluster(worker_count=2) as running:
        yield running


@pytest.fixture
def fresh_cluster() -> Iterator[Callable[..., Cluster]]:
    """Makes clusters for one test only, which may break them: ``fresh_cluster(worker_count=3)``."""
    with ExitStack() as stack:

        def make(*args: Any, **kwargs: Any) -> Cluster:
            return stack.enter_context(Cluster(*args, **kwargs))

        yield make
