"""What the control loop knows of its lease, without a disk that it might wait for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.unit.clock import Clock
from tests.unit.test_lease import TIMEOUT_S, leave, wait_for
from tune_sync.errors import LeaseLostError
from tune_sync.homes import lease as lease_module
from tune_sync.homes.lease import Holder, Lease, read_holder
from tune_sync.layout import LEASE_KEY


@pytest.fixture
def lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lease]:
    monkeypatch.setattr(lease_module, "HEARTBEAT_S", 0.01)
    made = Lease(tmp_path, "me", Clock())
    made.acquire()
    yield made
    made.release()


def test_the_control_loop_hears_of_a_loss_and_asks_no_disk(
    lease: Lease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, answers, here = threading.Event(), threading.Event(), threading.current_thread()

    def look(file: Path) -> Holder | None:
        assert threading.current_thread() is not here
        hangs.set()
        assert answers.wait(TIMEOUT_S)
        return read_holder(file)

    monkeypatch.setattr(lease_module, "read_holder", look)
    assert hangs.wait(TIMEOUT_S)
    lease.check_known()
    held = read_holder(tmp_path / LEASE_KEY)
    assert held is not None
    leave(tmp_path, owner="another", heartbeat_s=2001.0)
    answers.set()

    def is_lost() -> bool:
        try:
            lease.check_known()
        except LeaseLostError as error:
            return "no longer owned by this run" in str(error)
        return False

    wait_for(is_lost)
    leave(tmp_path, **asdict(held))  # as who only tidied hands it back
    wait_for(lambda: not is_lost())
