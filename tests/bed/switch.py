"""The network between hosts: one bridge, in a network namespace of its own.

Nothing of it shows on the machine: no device, no route, no address that two beds could fight
over. It ends with the process that holds it, and that one ends with its owner.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bed.command import run
from tests.bed.errors import BedError

NETWORK = "10.77.0"
GATEWAY = f"{NETWORK}.1"
UNLIMITED_MBIT = 1e6


class Switch:
    """A bridge that hosts plug into, each by a cable that can be cut or made bad."""

    def __init__(self) -> None:
        # The pipe is the leash: `cat` ends when its owner closes it or dies.
        self._process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo ready; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._cables: dict[str, subprocess.Popen[str]] = {}
        self._cut: set[str] = set()
        if self._process.stdout is None or self._process.stdout.readline() != "ready\n":
            raise BedError("could not make a network namespace for the switch")
        self._ip("link add br0 type bridge")
        self._ip(f"addr add {GATEWAY}/24 dev br0")
        self._ip("link set lo up")
        self._ip("link set br0 up")

    def plug_in(self, name: str, pid: int, address: str) -> None:
        """Give the network namespace of a process the address, on a cable to the bridge."""
        network = f"/proc/{pid}/ns/net"
        self._ip(f"link add name {name} type veth peer name e0 netns {network}")
        inside = ["nsenter", f"--net={network}", "ip"]
        run([*inside, "addr", "add", f"{address}/24", "dev", "e0"])
        run([*inside, "link", "set", "lo", "up"])
        run([*inside, "link", "set", "e0", "up"])
        # A default route, though it leads nowhere: programs ask it for their own address.
        run([*inside, "route", "add", "default", "via", GATEWAY])
        self._ip(f"link set dev {name} up")
        self._join(name)

    def cut(self, name: str) -> None:
        """Make every frame from and to a host vanish. Its own device stays up: nobody is told."""
        self._cut.add(name)
        self._ip(f"link set dev {self._port(name)} nomaster")

    def heal(self, name: str) -> None:
        """Undo :meth:`cut`."""
        self._cut.discard(name)
        self._join(self._port(name))

    def unplug(self, name: str) -> None:
        """Forget a host's cable, whatever its state."""
        self._cut.add(name)
        self.straighten(name)
        self._cut.discard(name)
        try:
            self._ip(f"link del dev {name}")
        except BedError:
            if name in self._devices():  # a device also goes by itself, with its dead host
                raise

    def bend(
        self, name: str, delay_ms: float, rate_mbit: float | None, loss_pct: float,
        open_ports: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Put a bad cable between a host and the bridge; see ``cable.py``."""
        self.straighten(name)
        inner, outer = f"{name}-in", f"{name}-out"
        self._ip(f"link add name {inner} type veth peer name {outer}")
        self._ip(f"link set {inner} up")
        self._ip(f"link set {outer} up")
        self._ip(f"link set dev {name} nomaster")
        numbers = [str(delay_ms), str(rate_mbit or UNLIMITED_MBIT), str(loss_pct)]
        numbers += [",".join(map(str, open_ports))] if open_ports else []
        script = str(Path(__file__).with_name("cable.py"))
        cable = subprocess.Popen(
            [*self._enter(), sys.executable, script, name, inner, *numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._cables[name] = cable
        if cable.stdout is None or cable.stdout.readline() != "ready\n":
            raise BedError(f"the bad cable of {name} did not start")
        if name not in self._cut:
            self._join(outer)

    def straighten(self, name: str) -> None:
        """Put the good cable back; does nothing when it is there."""
        cable = self._cables.pop(name, None)
        if cable is None:
            return
        _end(cable)
        self._ip(f"link del dev {name}-in")
        if name not in self._cut:
            self._join(name)

    def close(self) -> None:
        """Take the network down; may be called twice."""
        for cable in self._cables.values():
            _end(cable)
        self._cables.clear()
        _end(self._process)

    def _port(self, name: str) -> str:
        return f"{name}-out" if name in self._cables else name

    def _join(self, device: str) -> None:
        self._ip(f"link set dev {device} master br0")

    def _enter(self) -> list[str]:
        return ["nsenter", f"--net=/proc/{self._process.pid}/ns/net"]

    def _ip(self, command: str) -> str:
        return run([*self._enter(), "ip", *command.split()])

    def _devices(self) -> set[str]:
        lines = self._ip("-o link show").splitlines()
        return {line.split(": ")[1].split("@")[0] for line in lines}


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
