"""Servers that run as long as a block."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.stores.seaweed import wait_ready


@contextmanager
def serving(
    argv: Sequence[str], directory: Path, port: int, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in `directory` until the block ends; enter it when `port` answers."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "log"
    with open(log, "wb") as out:
        process = subprocess.Popen(argv, env=env, stdout=out, stderr=out, cwd=directory)
    try:
        wait_ready("127.0.0.1", port, log)
        yield process
    finally:
        process.kill()
        process.wait()
