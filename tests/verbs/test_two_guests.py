"""RDMA between two virtual machines, each with a kernel and a device of its own."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.verbs.guest import Guest

FIRST, SECOND = "10.9.0.1", "10.9.0.2"
MIB = 1 << 20
PACKET_BYTES = 4096
SOON_S = 60.0
KEEPER = (sys.executable, "-m", "tests.verbs.inside.keeper")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass(frozen=True, slots=True)
class Two:
    """Two machines on one cable; the first keeps memory at `address`."""

    first: Guest
    second: Guest
    address: str

    def begin(self, size_bytes: int) -> str:
        """Let the second write and read so much; returns when bytes are on their way."""
        name = self.second.start(*KEEPER, "across", self.address, str(size_bytes))
        assert first_line(self.second.folder / f"{name}.out") == "begun"
        return name

    def told(self, name: str) -> Any:
        done = self.second.end(name)
        assert done.returncode == 0, done.output
        return json.loads(done.output.splitlines()[-1])


def wire(role: str) -> tuple[str, ...]:
    """A network card; two of them are one cable."""
    card = "virtio-net-pci,netdev=cable,host_mtu=9000"
    number = 1 if role.startswith("listen") else 2
    return (
        *("-netdev", f"socket,id=cable,{role}"),
        *("-device", f"{card},mac=52:54:00:00:00:0{number}"),
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def first_line(path: Path) -> Any:
    deadline_s = time.monotonic() + SOON_S
    while "\n" not in (text := path.read_text() if path.exists() else ""):
        assert time.monotonic() < deadline_s, text
        time.sleep(0.05)
    return json.loads(text.splitlines()[0])


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    place = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        first = stack.enter_context(Guest(FIRST, 1536, wire(f"listen={place}")))
        second = stack.enter_context(Guest(SECOND, 1536, wire(f"connect={place}")))
        name = first.start(*KEEPER, "keep", FIRST, timeout_s=600)
        yield Two(first, second, first_line(first.folder / f"{name}.out"))


def test_memory_of_one_machine_is_written_and_read_by_the_other(two: Two) -> None:
    told = two.told(two.begin(16 * MIB))
    assert told["is_equal"] and not told["error"]
    assert told["sent_count"] >= 16 * MIB // PACKET_BYTES
    assert told["received_count"] >= 16 * MIB // PACKET_BYTES


def test_a_machine_that_stands_still_for_a_while_is_only_slow(two: Two) -> None:
    name = two.begin(128 * MIB)
    two.first.pause(3.0)
    told = two.told(name)
    assert told["is_equal"] and not told["error"]
    assert told["seconds"] > 3


def test_a_machine_without_power_is_lost_in_time(two: Two) -> None:
    name = two.begin(256 * MIB)
    two.first.close()
    told = two.told(name)
    # By the device's last retry, or by our deadline: in an emulated machine either may be first.
    assert told["error"] in ("PeerLostError", "SyncTimeoutError") and not told["is_equal"]
    assert told["seconds"] < SOON_S
