"""`tune-sync bench` over the device, as people start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.verbs.guest import ADDRESS
from tune_sync.fastpath.verbs.ports import counters

LOAD = ["--duration", "1", "--batch-size", "2", "--block-size", "1MiB", "--threads", "1"]
SENT = "hw_counters/sent_pkts"
PORT = Path("/sys/class/infiniband/rxe0/ports/1")


def bench(*words: str) -> list[str]:
    return [sys.executable, "-m", "tune_sync.cli", "bench", *words, "--transport", "rdma"]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "TUNE_SYNC_TOKEN": "the token of this bench", **more}


def index() -> str:
    """Of the device's IPv4 address."""
    address = "0a09:0001"
    found = [gid for gid in (PORT / "gids").iterdir() if gid.read_text().strip().endswith(address)]
    return found[0].name


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    device = ["--device", "rxe0", "--port", "1", "--gid-index", index()]
    words = bench("target", "--listen", f"{ADDRESS}:0", "--memory", "64MiB", *device)
    with subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith(f"rdma target at {ADDRESS}:")
        yield first.split()[-1]
        process.terminate()
        assert process.wait(60) == 0


def initiate(address: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        bench("initiator", address, *LOAD, *words), env=environment(**more), capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("operation", ["write", "read"])
def test_the_device_moves_what_it_measures(target: str, operation: str) -> None:
    before = counters("rxe0")
    done = initiate(
        target, "--operation", operation, "--json", TUNE_SYNC_RDMA_DEVICE="rxe0",
        TUNE_SYNC_RDMA_GID_INDEX=index(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["transport"], found["operation"]) == ("rdma", operation)
    assert found["moved_bytes"] >= 2 << 20
    moved_packets = counters("rxe0")[SENT] - before[SENT]
    assert moved_packets > found["moved_bytes"] / 4096


def test_a_device_or_an_index_that_is_not_there_is_named(target: str) -> None:
    done = initiate(target, "--device", "mlx5_7")
    assert done.returncode == 1 and "mlx5_7 is not there" in done.stderr
    done = initiate(target, TUNE_SYNC_RDMA_GID_INDEX="200")
    assert done.returncode == 1 and "no index 200 that fits" in done.stderr
