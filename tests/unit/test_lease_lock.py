"""One at a time has the lock of a lease, and gives it up whatever happens as it is held."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import threading
import time
from pathlib import Path
from typing import IO

import pytest

from tune_sync.errors import ConfigError, LeaseHeldError
from tune_sync.homes import lease_lock
from tune_sync.homes.lease import Lease
from tune_sync.homes.lease_lock import locked


def test_a_file_system_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*args: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(ConfigError, match=r"lock.*no flock.*storage_path"):
        Lease(tmp_path, "me").acquire()


def test_one_of_many_that_start_at_once_gets_it(tmp_path: Path) -> None:
    leases = [Lease(tmp_path, f"run{number}") for number in range(12)]
    got, ready = [], threading.Barrier(len(leases))

    def start(lease: Lease) -> None:
        ready.wait()
        try:
            lease.acquire()
        except LeaseHeldError:
            return
        got.append(lease)

    threads = [threading.Thread(target=start, args=(lease,)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1
    got[0].check()
    got[0].release()


def test_a_process_that_was_forked_meanwhile_does_not_keep_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_lock, "LOCK_TRIES", 2)
    file = tmp_path / "lease.json"
    with locked(file):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
    try:
        with locked(file):
            assert child.is_alive()
    finally:
        child.kill()
        child.join()


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

    monkeypatch.setattr(lease_lock, "LOCK_TRIES", 2)
    monkeypatch.setattr(lease_lock, "_is_at", has_moved)
    try:
        with locked(tmp_path / "lease.json"):
            assert children[0].is_alive()
    finally:
        children[0].kill()
        children[0].join()
