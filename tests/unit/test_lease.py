"""Who may write an experiment directory."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.unit.clock import Clock
from tune_sync.errors import LeaseHeldError, LeaseLostError
from tune_sync.homes import lease as lease_module
from tune_sync.homes.lease import (
    LEASE_TTL_S,
    TIDYING,
    Holder,
    Lease,
    check_owner,
    live_holder,
    read_holder,
)
from tune_sync.homes.lease_lock import locked
from tune_sync.layout import LEASE_KEY
from tune_sync.process import machine, start_of

TIMEOUT_S = 30.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def made() -> Iterator[list[Lease]]:
    leases: list[Lease] = []
    yield leases
    for lease in leases:
        lease.release()


def leave(root: Path, **changes: object) -> Holder:
    """Leave a lease behind, as of a process elsewhere unless told otherwise."""
    holder = Holder("other", "far", 12, "another machine", "345", 1000.0)
    holder = replace(holder, **changes)  # type: ignore[arg-type]
    (root / LEASE_KEY).parent.mkdir(parents=True, exist_ok=True)
    (root / LEASE_KEY).write_text(json.dumps(asdict(holder)))
    return holder


def mine(root: Path, clock: Clock, made: list[Lease], owner: str = "me") -> Lease:
    made.append(Lease(root, owner, clock))
    return made[-1]


def test_a_free_directory_is_taken_and_given_back(
    tmp_path: Path, clock: Clock, made: list[Lease]
) -> None:
    lease = mine(tmp_path, clock, made)
    lease.acquire()
    holder = read_holder(tmp_path / LEASE_KEY)
    assert holder is not None
    assert (holder.owner, holder.pid, holder.heartbeat_s) == ("me", os.getpid(), 1000.0)
    lease.check()
    lease.release()
    lease.release()
    assert read_holder(tmp_path / LEASE_KEY) is None


def test_a_live_holder_is_named_with_its_age(
    tmp_path: Path, clock: Clock, made: list[Lease]
) -> None:
    leave(tmp_path)
    clock.now_s += 7
    with pytest.raises(LeaseHeldError, match=r"process 12 on host far.* 7 s ago.*another name"):
        mine(tmp_path, clock, made).acquire()
    held = read_holder(tmp_path / LEASE_KEY)
    assert held is not None
    assert held.owner == "other"


def test_a_holder_whose_clock_is_ahead_is_waited_for_by_as_much_longer(
    tmp_path: Path, clock: Clock, made: list[Lease]
) -> None:
    leave(tmp_path, heartbeat_s=clock.now_s + 60)
    with pytest.raises(LeaseHeldError, match=f"wait {LEASE_TTL_S + 60:.0f} s"):
        mine(tmp_path, clock, made).acquire()
    clock.now_s += LEASE_TTL_S + 60
    mine(tmp_path, clock, made).acquire()


@pytest.mark.parametrize("silent_s", [LEASE_TTL_S - 0.1, LEASE_TTL_S])
def test_a_silent_holder_elsewhere_loses_it_after_the_time_to_live(
    tmp_path: Path, clock: Clock, made: list[Lease], silent_s: float
) -> None:
    leave(tmp_path)
    clock.now_s += silent_s
    if silent_s < LEASE_TTL_S:
        with pytest.raises(LeaseHeldError):
            mine(tmp_path, clock, made).acquire()
    else:
        mine(tmp_path, clock, made).acquire()
        with pytest.raises(LeaseLostError, match="owned by this run"):
            check_owner(tmp_path, "other")


def test_a_dead_process_of_this_machine_loses_it_at_once(
    tmp_path: Path, clock: Clock, made: list[Lease]
) -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    leave(tmp_path, machine=lease_module._machine(), pid=process.pid)
    mine(tmp_path, clock, made).acquire()


def test_a_process_that_got_the_number_of_a_dead_one_is_not_taken_for_it(
    tmp_path: Path, clock: Clock, made: list[Lease]
) -> None:
    leave(tmp_path, machine=lease_module._machine(), pid=os.getpid(), process_start="1")
    mine(tmp_path, clock, made).acquire()


def test_a_process_that_the_system_hides_is_not_taken_for_dead(
    tmp_path: Path, clock: Clock, made: list[Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(tmp_path, machine=lease_module._machine(), pid=os.getpid(), process_start="345")
    read = Path.read_text

    def read_text(path: Path, *args: str) -> str:  # with hidepid=2, of another user's
        if path.name == "stat":
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return read(path, *args)

    monkeypatch.setattr(Path, "read_text", read_text)
    with pytest.raises(LeaseHeldError):
        mine(tmp_path, clock, made).acquire()
    clock.now_s += LEASE_TTL_S
    mine(tmp_path, clock, made).acquire()


def test_a_process_of_another_machine_with_our_number_is_not_taken_for_dead(
    tmp_path: Path, clock: Clock, made: list[Lease]
) -> None:
    leave(tmp_path, pid=2**22 - 1)
    with pytest.raises(LeaseHeldError):
        mine(tmp_path, clock, made).acquire()


def test_a_holder_may_be_replaced_by_leave_of_the_caller(
    tmp_path: Path, clock: Clock, made: list[Lease]
) -> None:
    first = mine(tmp_path, clock, made)
    first.acquire()
    asked: list[str] = []
    second = mine(tmp_path, clock, made, "second")

    def may_take(holder: Holder) -> bool:
        asked.append(holder.owner)
        return True

    second.acquire(may_take=may_take)
    assert asked == ["me"]
    second.check()
    with pytest.raises(LeaseLostError, match=f"process {os.getpid()} on host"):
        first.check()


def test_whoever_lost_it_does_not_take_it_away_on_release(
    tmp_path: Path, clock: Clock, made: list[Lease]
) -> None:
    first, second = mine(tmp_path, clock, made), mine(tmp_path, clock, made, "second")
    first.acquire()
    second.acquire(may_take=lambda holder: True)
    first.release()
    second.check()


def test_the_heartbeat_rests_while_it_is_lost_and_goes_on_when_it_is_handed_back(
    tmp_path: Path, clock: Clock, made: list[Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "HEARTBEAT_S", 0.01)
    lease = mine(tmp_path, clock, made)
    lease.acquire()
    clock.now_s = 2000.0
    wait_for(lambda: heartbeat_s(tmp_path) == 2000.0)
    held = read_holder(tmp_path / LEASE_KEY)
    assert held is not None
    with locked(tmp_path / LEASE_KEY):  # and not between a look and a write of the heartbeat
        taken = leave(tmp_path, owner=f"{TIDYING}1", heartbeat_s=2001.0)
    clock.now_s = 3000.0
    looks = list[object]()

    def look(file: Path) -> Holder | None:
        looks.append(file)
        return read_holder(file)

    monkeypatch.setattr(lease_module, "read_holder", look)
    wait_for(lambda: len(looks) > 2)
    assert read_holder(tmp_path / LEASE_KEY) == taken
    leave(tmp_path, **asdict(held.left))
    wait_for(lambda: heartbeat_s(tmp_path) == 3000.0)
    assert live_holder(tmp_path, clock) is not None


def test_a_heartbeat_that_cannot_be_written_is_tried_again(
    tmp_path: Path, clock: Clock, made: list[Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "HEARTBEAT_S", 0.01)
    lease = mine(tmp_path, clock, made)
    lease.acquire()
    gone = tmp_path / "gone"
    with locked(tmp_path / LEASE_KEY):
        (tmp_path / ".tune_sync").rename(gone)
    time.sleep(0.1)
    gone.rename(tmp_path / ".tune_sync")
    clock.now_s = 2000.0
    wait_for(lambda: heartbeat_s(tmp_path) == 2000.0)


def test_a_lock_service_that_is_away_ends_neither_the_heartbeat_nor_the_run(
    tmp_path: Path, clock: Clock, made: list[Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "HEARTBEAT_S", 0.01)
    # Owners are known by their names in this process, for good once they ended so.
    lease, was_asked = mine(tmp_path, clock, made, "without locks"), threading.Event()
    lease.acquire()

    def flock(*args: object) -> None:  # as of NFS, while its lock service is started again
        was_asked.set()
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as away:
        away.setattr(fcntl, "flock", flock)
        assert was_asked.wait(TIMEOUT_S)
    clock.now_s = 2000.0
    wait_for(lambda: heartbeat_s(tmp_path) == 2000.0)
    monkeypatch.setattr(fcntl, "flock", flock)
    lease.release()


def test_the_end_of_a_run_is_no_failure_where_its_directory_was_removed(
    tmp_path: Path, clock: Clock, made: list[Lease]
) -> None:
    lease = mine(tmp_path, clock, made)
    lease.acquire()
    shutil.rmtree(tmp_path / ".tune_sync")
    lease.release()
    lease.leave()
    lease.hand_back()
    with pytest.raises(LeaseLostError):
        lease.check()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\x80\x04.", b'{"owner": "x"}', b"null", b"[" * 100_000]
)
def test_an_unreadable_lease_holds_nobody_off(
    tmp_path: Path, clock: Clock, made: list[Lease], content: bytes
) -> None:
    (tmp_path / ".tune_sync").mkdir()
    (tmp_path / LEASE_KEY).write_bytes(content)
    assert live_holder(tmp_path, clock) is None
    with pytest.raises(LeaseLostError, match="now by nobody"):
        check_owner(tmp_path, "me")
    mine(tmp_path, clock, made).acquire()


def test_only_a_live_holder_live_holder(tmp_path: Path, clock: Clock) -> None:
    assert live_holder(tmp_path, clock) is None
    holder = leave(tmp_path)
    assert live_holder(tmp_path, clock) == holder
    clock.now_s += LEASE_TTL_S
    assert live_holder(tmp_path, clock) is None


def test_a_disk_that_hangs_does_not_keep_a_run_from_its_end(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(lease_module, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(lease_module, "GIVE_S", 0.1)
    lease, hangs, answers = Lease(tmp_path, "hanging", clock), threading.Event(), threading.Event()
    lease.acquire()

    def write(*args: object, **named: object) -> None:
        hangs.set()
        assert answers.wait(TIMEOUT_S)

    monkeypatch.setattr(lease, "_write", write)
    assert hangs.wait(TIMEOUT_S)
    end = threading.Thread(target=lease.release)
    end.start()
    end.join(TIMEOUT_S / 2)
    assert not end.is_alive()
    assert "left to run out" in caplog.text and "does not answer" in caplog.text
    held = read_holder(tmp_path / LEASE_KEY)
    assert held is not None and held.is_surely_dead
    answers.set()  # then it is given back late
    wait_for(lambda: read_holder(tmp_path / LEASE_KEY) is None)


def test_a_lease_is_given_back_where_there_is_no_thread_for_that(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease(tmp_path, "me", clock)
    lease.acquire()

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    lease.release()
    assert read_holder(tmp_path / LEASE_KEY) is None


def heartbeat_s(root: Path) -> float:
    holder = read_holder(root / LEASE_KEY)
    return holder.heartbeat_s if holder is not None else -1.0


def wait_for(holds: object) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_a_lease_that_is_left_is_free_at_once_and_its_agents_may_still_write(
    tmp_path: Path, clock: Clock, made: list[Lease]
) -> None:
    first = mine(tmp_path, clock, made)
    first.acquire()
    first.leave()
    first.check()
    assert live_holder(tmp_path, clock) is None
    mine(tmp_path, clock, made, "second").acquire()
    with pytest.raises(LeaseLostError):
        first.check()


def test_a_lease_is_handed_back_to_the_dead_run_that_had_it(
    tmp_path: Path, clock: Clock, made: list[Lease]
) -> None:
    leave(tmp_path)
    clock.now_s += LEASE_TTL_S
    lease = mine(tmp_path, clock, made)
    lease.acquire()
    lease.hand_back()
    check_owner(tmp_path, "other")
    assert live_holder(tmp_path, clock) is None
    again = mine(tmp_path, clock, made, "again")
    again.acquire()
    again.release()
    assert read_holder(tmp_path / LEASE_KEY) is None


def test_a_lease_that_was_taken_from_the_living_is_not_handed_back(
    tmp_path: Path, clock: Clock, made: list[Lease]
) -> None:
    leave(tmp_path)
    lease = mine(tmp_path, clock, made)
    lease.acquire(may_take=lambda holder: True)
    lease.hand_back()
    assert read_holder(tmp_path / LEASE_KEY) is None


def test_what_is_only_tidied_is_not_taken_from_a_process_that_is_stopped(
    tmp_path: Path, clock: Clock, made: list[Lease]
) -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        began = start_of(process.pid)
        leave(tmp_path, pid=process.pid, machine=machine(), process_start=began, heartbeat_s=1.0)
        with pytest.raises(LeaseHeldError, match=f"stopped: .*kill -CONT {process.pid}"):
            mine(tmp_path, clock, made, f"{TIDYING}1").acquire()
        leave(tmp_path, pid=process.pid, machine=machine(), process_start=began, heartbeat_s=0.0)
        of_what_was_over = mine(tmp_path, clock, made, f"{TIDYING}2")
        of_what_was_over.acquire()
        of_what_was_over.hand_back()
        mine(tmp_path, clock, made, "a restore").acquire()
        assert live_holder(tmp_path, clock) is not None
    finally:
        process.kill()
        process.wait()
    leave(tmp_path, pid=process.pid, machine=machine(), process_start=began, heartbeat_s=0.0)
    mine(tmp_path, clock, made, f"{TIDYING}3").acquire()
