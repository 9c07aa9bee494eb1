"""Memory to memory between hosts whose link is cut, slow or lossy, or one of which dies."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bed.bare import BareHosts
from tests.bed.host import Host, send
from tests.bed.ray_node import REPOSITORY

pytestmark = pytest.mark.hosts

DRIVERS = REPOSITORY / "tests/hosts/drivers"
MIB = 1 << 20
STALL_S = 8.0  # longer than a busy machine lets a process wait
CABLE_MBIT = 400


class Home:
    """The host that holds memory."""

    def __init__(self, bed: BareHosts, stall_s: float) -> None:
        argv = [sys.executable, str(DRIVERS / "shelf_host.py"), bed.addresses["head"], str(stall_s)]
        self.process = bed.hosts["head"].popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.address = self._line()

    def ask(self, question: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


class Writer:
    """A process on another host that writes."""

    def __init__(
        self, host: Host, home: Home, key: str, stall_s: float, times: int,
        size_bytes: int = 32 * MIB,
    ) -> None:  # fmt: skip
        arguments = [home.address, key, str(size_bytes), str(stall_s), str(times)]
        self.process = host.popen(
            [sys.executable, str(DRIVERS / "shelf_writer.py"), *arguments], stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "writing\n"

    def result(self) -> tuple[str, float, str]:
        assert self.process.stdout is not None
        error, seconds, digest = json.loads(self.process.stdout.readline())
        self.process.wait()
        return error, seconds, digest


@pytest.fixture
def bed() -> Iterator[BareHosts]:
    with BareHosts() as made:
        yield made


def wait_until_free(home: Home, timeout_s: float) -> float:
    started_s = time.monotonic()
    while home.ask("used"):
        assert time.monotonic() - started_s < timeout_s, "the memory is still taken"
        time.sleep(0.1)
    return time.monotonic() - started_s


def test_a_link_that_is_cut_for_ten_seconds_only_delays(bed: BareHosts) -> None:
    # By it all takes 13 s at least, so that the cut is in the middle whenever it comes.
    bed.switch.bend("w1", delay_ms=0, rate_mbit=CABLE_MBIT, loss_pct=0)
    home = Home(bed, 30)
    writer = Writer(bed.hosts["w1"], home, "k", 30, times=20)
    bed.switch.cut("w1")
    time.sleep(10)
    assert home.ask("find k") is None
    bed.switch.heal("w1")
    error, seconds, digest = writer.result()
    assert error == "" and 10 < seconds < 120
    assert home.ask("find k") == digest


def test_a_link_that_is_cut_for_longer_than_the_limit_is_an_error(bed: BareHosts) -> None:
    home = Home(bed, STALL_S)
    writer = Writer(bed.hosts["w1"], home, "k", STALL_S, times=1000)
    bed.switch.cut("w1")
    error, seconds, _ = writer.result()
    assert error == "SyncTimeoutError" and seconds < 50
    wait_until_free(home, 50)  # the link is still cut
    assert home.ask("find k") is None
    bed.switch.heal("w1")
    error, _, digest = Writer(bed.hosts["w1"], home, "k", 30, times=1).result()
    assert error == "" and home.ask("find k") == digest


def test_a_host_without_power_leaves_nothing(bed: BareHosts) -> None:
    home = Home(bed, STALL_S)
    Writer(bed.hosts["w1"], home, "k", STALL_S, times=1000)
    assert home.ask("used") == 32 * MIB
    bed.hosts["w1"].kill()
    wait_until_free(home, 50)
    assert home.ask("find k") is None


def test_a_writer_learns_that_home_has_no_power(bed: BareHosts) -> None:
    home = Home(bed, STALL_S)
    writer = Writer(bed.hosts["w1"], home, "k", STALL_S, times=1000)
    bed.hosts["head"].kill()
    error, seconds, _ = writer.result()
    assert error in ("SyncTimeoutError", "PeerLostError") and seconds < 50


@pytest.mark.parametrize("loss_pct", [0, 0.5])
def test_a_slow_or_lossy_link_is_no_cut_one(bed: BareHosts, loss_pct: float) -> None:
    """The transfer takes longer than the limit for one wait, as may each of its blocks."""
    bed.switch.bend("w1", delay_ms=20, rate_mbit=8, loss_pct=loss_pct)
    # On a busy machine a lost packet may come again after more than a second.
    home = Home(bed, STALL_S)
    writer = Writer(bed.hosts["w1"], home, "k", STALL_S, times=1, size_bytes=12 * MIB)
    error, seconds, digest = writer.result()
    assert error == "" and home.ask("find k") == digest
    assert seconds > 12 * MIB * 8 / 8e6 > STALL_S


def test_the_bench_measures_from_one_host_to_another(bed: BareHosts) -> None:
    env = {"TUNE_SYNC_TOKEN": "0123456789abcdef" * 2}
    bench = [sys.executable, "-m", "tune_sync.cli", "bench"]
    listen = f"{bed.addresses['head']}:0"
    target = bed.hosts["head"].popen(
        [*bench, "target", "--transport", "tcp", "--memory", "8MiB", "--listen", listen],
        env, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert target.stdout is not None
    address = target.stdout.readline().split()[-1]
    assert address.startswith(f"{bed.addresses['head']}:")
    bed.switch.bend("w1", delay_ms=0, rate_mbit=CABLE_MBIT, loss_pct=0)
    load = ["--duration", "1", "--batch-size", "2", "--block-size", "64KiB", "--threads", "2"]
    for operation in ("write", "read"):
        argv = [*bench, "initiator", address, "--operation", operation, *load, "--json"]
        found = json.loads(bed.hosts["w1"].exec(argv, env).stdout)
        assert (found["transport"], found["operation"]) == ("tcp", operation)
        assert 0 < found["moved_bytes"] * 8 / found["seconds"] < CABLE_MBIT * 1e6, (
            "not by the cable"
        )
        assert "CPU here" in target.stdout.readline()
    send(target, signal.SIGTERM)
    assert target.wait(60) == 0
