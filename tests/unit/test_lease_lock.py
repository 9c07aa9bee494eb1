"""The lock of a lease is given up, whatever happens as it is held."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import time
from pathlib import Path
from typing import IO

import pytest

from tune_sync.homes import lease as lease_module
from tune_sync.homes.lease import locked


def test_a_disk_that_refuses_to_unlock_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def refuse(file: IO[str], operation: int) -> None:
        if operation == fcntl.LOCK_UN:
            raise OSError(errno.ESTALE, "stale file handle")
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path / "lease.json"):
        pass
    with pytest.raises(ValueError, match="of the body"), locked(tmp_path / "lease.json"):
        raise ValueError("of the body")


def test_a_process_that_is_forked_as_its_directory_has_moved_does_not_keep_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = []

    def has_moved(file: IO[str], path: Path) -> bool:
        if children:
            return True
        children.append(multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,)))
        children[0].start()
        return False

    monkeypatch.setattr(lease_module, "LOCK_TRIES", 2)
    monkeypatch.setattr(lease_module, "_is_at", has_moved)
    try:
        with locked(tmp_path / "lease.json"):
            assert children[0].is_alive()
    finally:
        children[0].kill()
        children[0].join()
