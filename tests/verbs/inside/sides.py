"""Two processes that are connected: this one, and one whose memory is written and read."""

from __future__ import annotations

import mmap
import random
import subprocess
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import xxhash

from tests.verbs.inside.others import Answers, Other, serve
from tune_sync.fastpath.verbs.checks import find_port_address
from tune_sync.fastpath.verbs.device import Device, Memory, VerbsMemory
from tune_sync.fastpath.verbs.endpoint import Endpoint, Window
from tune_sync.fastpath.verbs.queue_pair import Move, QueuePair

PATTERN_BYTES = 4099
CARD = "veth0"
UP_S = 30.0
Buffer = bytearray | bytes | memoryview | mmap.mmap


def content(size_bytes: int, seed: int = 1) -> bytearray:
    """Bytes that no power of two shifts onto themselves; random ones take long in a guest."""
    pattern = random.Random(seed).randbytes(PATTERN_BYTES)
    return bytearray((pattern * (size_bytes // PATTERN_BYTES + 1))[:size_bytes])


def digest(data: Buffer) -> str:
    return xxhash.xxh3_128_hexdigest(data)


class There(Other):
    """The other process, and a queue pair that reaches its memory."""

    def __init__(self, pair: QueuePair, size_bytes: int) -> None:
        super().__init__(keep_memory, size_bytes)
        self.pair = pair
        self.window = Window.parsed(self.told["window"])
        pair.connect(Endpoint.parsed(self.told["endpoint"]))
        self.ask("connect", endpoint=pair.endpoint.fields())


class Here:
    """Makes connections and memory, and ends them."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._stack = ExitStack()

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def memory(self, data: Memory) -> VerbsMemory:
        registered = self.device.register(data, remote=False)
        self._stack.callback(registered.close)
        return registered

    def other(self, size_bytes: int) -> There:
        pair = QueuePair(self.device)
        self._stack.callback(pair.close)
        there = There(pair, size_bytes)
        self._stack.callback(there.kill)
        return there


def whole(local: VerbsMemory, there: There, *, is_write: bool = True) -> Move:
    """All of the memory here, to or from the beginning of the memory there."""
    return there.pair.start(Move(local, 0, there.window, 0, local.length_bytes, is_write))


def cut_link() -> None:
    """Let nothing through the device."""
    subprocess.run(["ip", "link", "set", CARD, "down"], check=True)


def mend_link() -> None:
    """Undo `cut_link`; the device is there on return."""
    subprocess.run(["ip", "link", "set", CARD, "up"], check=True)
    deadline_s = time.monotonic() + UP_S
    state = Path("/sys/class/infiniband/rxe0/ports/1/state")
    while "ACTIVE" not in state.read_text() and time.monotonic() < deadline_s:
        time.sleep(0.1)


def keep_memory(connection: Connection, size_bytes: int) -> None:
    """What the other process does."""
    device = Device(find_port_address())
    memory = bytearray(size_bytes)
    registered = device.register(memory, remote=True)
    pair = QueuePair(device, is_target=True)
    window = registered.window(0, size_bytes)

    def fill(request: dict[str, Any]) -> str:
        memory[:] = content(size_bytes, request["seed"])
        return digest(memory)

    answers: Answers = {
        "connect": lambda request: pair.connect(Endpoint.parsed(request["endpoint"])),
        "digest": lambda request: digest(memory),
        "fill": fill,
        "revoke": lambda request: pair.close(),
    }
    told = {"endpoint": pair.endpoint.fields(), "window": window.fields()}
    serve(connection, told, answers)
