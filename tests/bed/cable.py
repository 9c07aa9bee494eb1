"""A bad network cable: carries Ethernet frames between two devices late, slowly, or not at all.

The kernel's own tool for this (netem) is missing from many small kernels, so this is a plain
process with two packet sockets. Frames keep their offload header (PACKET_VNET_HDR), so large
segments pass in one piece, checksums and all; a lost frame may therefore be up to 64 KiB.

    python cable.py DEVICE DEVICE DELAY_MS RATE_MBIT LOSS_PCT [PORT,PORT...]

With ports it is a firewall too: towards the first device, TCP connections to ports from CLOSED_FROM
on begin at these alone. What else tries gets no answer.
"""

from __future__ import annotations

import heapq
import random
import select
import socket
import sys
import time
from dataclasses import dataclass, field

# Linux numbers that Python's socket module does not name.
SOL_PACKET = 263
PACKET_VNET_HDR = 15
PACKET_IGNORE_OUTGOING = 23
ETH_P_ALL = 3

FRAME_BYTES = 70_000  # the largest offloaded segment with its headers
CLOSED_FROM = 32768  # where Linux begins to hand out ports
# Before the network's frame there is the offload header; then Ethernet's.
HEADERS_BYTES = 10 + 14
QUEUE_BYTES = 32 << 20  # as a deep switch buffer; beyond it frames are dropped


@dataclass(slots=True)
class Lane:
    """One direction of the cable, with its own queue of frames on their way."""

    out: socket.socket
    delay_s: float
    bytes_per_s: float
    loss: float
    chance: random.Random
    open_ports: frozenset[int] | None = None
    free_at_s: float = 0.0
    queued_bytes: int = 0
    queue: list[tuple[float, int, bytes]] = field(default_factory=list)
    count: int = 0

    def accept(self, frame: bytes, now_s: float) -> None:
        """Take a frame in, or lose it."""
        if self.queued_bytes > QUEUE_BYTES or self.chance.random() < self.loss:
            return
        if self.open_ports is not None and self._is_closed(begun_at(frame)):
            return
        self.free_at_s = max(now_s, self.free_at_s) + len(frame) / self.bytes_per_s
        self.count += 1
        self.queued_bytes += len(frame)
        heapq.heappush(self.queue, (self.free_at_s + self.delay_s, self.count, frame))

    def _is_closed(self, port: int) -> bool:
        return port >= CLOSED_FROM and port not in (self.open_ports or ())

    def deliver(self, now_s: float) -> None:
        """Hand on every frame whose time has come."""
        while self.queue and self.queue[0][0] <= now_s:
            frame = heapq.heappop(self.queue)[2]
            self.queued_bytes -= len(frame)
            try:
                self.out.send(frame)
            except OSError:
                continue  # the device is down or its buffer is full: a lost frame, as on a wire


def begun_at(frame: bytes) -> int:
    """The port at which a frame wants a TCP connection to begin; 0 if it wants none."""
    packet = frame[HEADERS_BYTES:]
    if frame[HEADERS_BYTES - 2 : HEADERS_BYTES] != b"\x08\x00" or packet[9] != socket.IPPROTO_TCP:
        return 0
    segment = packet[(packet[0] & 15) * 4 :]
    is_first = segment[13] & 0x12 == 0x02  # SYN without ACK
    return int.from_bytes(segment[2:4], "big") if is_first else 0


def open_device(name: str) -> socket.socket:
    """A packet socket that reads and writes whole frames of a network device."""
    device = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    device.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    device.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    device.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    device.bind((name, 0))
    return device


def carry(
    first: str, second: str, delay_s: float, bytes_per_s: float, loss: float,
    open_ports: frozenset[int] | None,
) -> None:  # fmt: skip
    """Carry frames between two devices until standard input closes: the owner is done or dead."""
    ends = open_device(first), open_device(second)
    chance = random.Random(1)
    lanes = {
        source: Lane(out, delay_s, bytes_per_s, loss, chance) for source, out in (ends, ends[::-1])
    }
    lanes[ends[1]].open_ports = open_ports
    print("ready", flush=True)
    while True:
        due = [lane.queue[0][0] for lane in lanes.values() if lane.queue]
        wait_s = max(0.0, min(due) - time.monotonic()) if due else None
        ready = select.select([sys.stdin, *lanes], [], [], wait_s)[0]
        if sys.stdin in ready:
            return
        for source, lane in lanes.items():
            if source in ready:
                try:
                    lane.accept(source.recv(FRAME_BYTES), time.monotonic())
                except OSError:
                    continue  # the device went down; it may come back
        for lane in lanes.values():
            lane.deliver(time.monotonic())


if __name__ == "__main__":
    one, two, delay_ms, rate_mbit, loss_pct, *more = sys.argv[1:]
    ports = frozenset(map(int, more[0].split(","))) if more else None
    carry(one, two, float(delay_ms) / 1e3, float(rate_mbit) * 125_000, float(loss_pct) / 100, ports)
