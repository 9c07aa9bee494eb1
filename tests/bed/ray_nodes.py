"""Ray on the hosts of a cluster: starting its nodes, and asking the head which are alive."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.bed.errors import BedError
from tests.bed.host import Host, send
from tests.bed.ray_node import RAY_PORT, is_listening, start_argv

HEAD = "head"
POLL_S = 0.1
ENDING_TIMEOUT_S = 90.0  # about 20 s were seen


@dataclass(slots=True)
class RayNodes:
    """Ray's nodes, one a host.

    Attributes:
        python: The interpreter of the environment that has Ray.
        log_dir: Where each node's output goes.
        cpus: Host -> Ray CPUs, for every host with a Ray node.
        addresses: Host -> its address.
        object_store_bytes: Ray's object store on each host.
    """

    python: Path
    log_dir: Path
    cpus: dict[str, int]
    addresses: dict[str, str]
    object_store_bytes: int
    _running: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    _watch: subprocess.Popen[str] | None = None

    def start(self, hosts: dict[str, Host], timeout_s: float) -> None:
        """Start Ray on these hosts where it does not run, the head first, and wait for it."""
        deadline_s = time.monotonic() + timeout_s
        if HEAD in hosts:
            self._start_one(HEAD, hosts[HEAD])
            while not is_listening(hosts[HEAD].pid, RAY_PORT):
                self._check(HEAD, deadline_s)
            self._connect(hosts[HEAD])
        for name, host in hosts.items():
            if name != HEAD:
                self._start_one(name, host)
        while waiting := set(hosts) - self.alive():
            for name in waiting:
                self._check(name, deadline_s)

    def forget(self, name: str) -> None:
        """A host is gone, and its node with it."""
        node = self._running.pop(name, None)
        if node is not None:
            node.wait()
        if name == HEAD:
            self._disconnect()

    def alive(self) -> set[str]:
        """Hosts that the head holds for alive."""
        if self._watch is None or self._watch.stdin is None or self._watch.stdout is None:
            raise BedError("no Ray head is running")
        self._watch.stdin.write("\n")
        self._watch.stdin.flush()
        line = self._watch.stdout.readline()
        if not line:
            raise BedError(f"Ray's head does not answer; see {self.log_dir}/watch.log")
        by_address = json.loads(line)
        return {name for name in self.cpus if by_address.get(self.addresses[name], False)}

    def wait_until(self, holds: Callable[[set[str]], bool], wanted: str, timeout_s: float) -> float:
        """Wait until something holds of the hosts alive; returns the seconds it took.

        Raises:
            BedError: It took too long.
        """
        start_s = time.monotonic()
        while not holds(alive := self.alive()):
            if time.monotonic() - start_s > timeout_s:
                raise BedError(f"waited {timeout_s} s for {wanted}; alive: {sorted(alive)}")
            time.sleep(POLL_S)
        return time.monotonic() - start_s

    def _start_one(self, name: str, host: Host) -> None:
        if self._still_runs(name):
            return
        argv = start_argv(
            self.python.parent / "ray",
            name,
            self.addresses[name],
            None if name == HEAD else self.addresses[HEAD],
            self.cpus[name],
            self.object_store_bytes,
        )
        with self._log(f"ray-{name}") as log:
            self._running[name] = host.popen(argv, stdout=log, stderr=subprocess.STDOUT)

    def _still_runs(self, name: str) -> bool:
        node = self._running.get(name)
        if node is None or node.poll() is not None:
            return False
        if name == HEAD or name in self.alive():
            return True
        # The head has given it up. It would end by itself when it hears of that; don't wait.
        try:
            send(node, signal.SIGTERM)
            node.wait(ENDING_TIMEOUT_S)
        except ProcessLookupError:
            node.wait()
        except subprocess.TimeoutExpired:
            raise BedError(f"Ray on {name} is neither alive nor ended; kill the host") from None
        return False

    def _check(self, name: str, deadline_s: float) -> None:
        """Wait a moment for a starting node; raise if it has ended or is late."""
        time.sleep(POLL_S)
        log = self.log_dir / f"ray-{name}.log"
        if self._running[name].poll() is not None:
            raise BedError(f"Ray on {name} did not start:\n{log.read_text()[-3000:]}")
        if time.monotonic() > deadline_s:
            raise BedError(f"Ray on {name} is not up in time; see {log}")

    def _connect(self, head: Host) -> None:
        self._disconnect()
        with self._log("watch") as log:
            self._watch = head.popen(
                [str(self.python), "-m", "tests.bed.watch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def _disconnect(self) -> None:
        if self._watch is None:
            return
        for stream in (self._watch.stdin, self._watch.stdout):
            if stream is not None:
                stream.close()
        self._watch.wait()
        self._watch = None

    def _log(self, name: str) -> IO[str]:
        return (self.log_dir / f"{name}.log").open("a")
