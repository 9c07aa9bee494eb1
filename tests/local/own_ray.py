"""Environments for drivers that start a Ray of their own beside the one of the tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tests.bed.ray_node import PYTHONPATH


@contextmanager
def own_ray() -> Iterator[dict[str, str]]:
    """Ray keeps its files in a place of its own: others would connect to the last cluster there.

    A short path: sockets lie below it.
    """
    place = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    env = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    try:
        yield {**env, "PYTHONPATH": PYTHONPATH, "RAY_TMPDIR": place}
    finally:
        shutil.rmtree(place, ignore_errors=True)
