"""One host: its own network, mounts, processes, shared memory, name and disks.

A host is whatever lives in the namespaces of one first process. Killing that process kills
everything in the host at once, and its tmpfs disks are gone with it.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.bed.errors import BedError
from tests.bed.need import UNSHARE

TMP = "/tmp"
PRIVATE_ROOT = "/srv"  # on every Linux, empty on most: homes are made below it
DEFAULT_HOME = f"{PRIVATE_ROOT}/home"
EXEC_TIMEOUT_S = 100.0
GONE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class HostSpec:
    """What a host is made of.

    Attributes:
        name: Its host name, also the name of its Ray resource and of its network device.
        address: Its IPv4 address.
        home: Its HOME, below ``/srv`` or an existing directory of the machine, which it hides.
        home_on_machine: A directory of the machine to keep HOME in; None: a fresh tmpfs.
        disk_bytes: Size of ``/tmp`` (Ray's own directory is there) and of HOME, each.
        shm_bytes: Size of ``/dev/shm``.
        shared: Directories of the machine below ``/tmp`` or ``/srv`` that stay visible, read-only.
        mounts: Directory of the host below ``/srv`` -> directory of the machine bound there, which
            the host may write: what several hosts share.
        files: Host file -> a file of the machine shown there, such as ``/etc/hosts``.
        env: The environment of everything that runs in the host.
    """

    name: str
    address: str
    home: str
    home_on_machine: Path | None
    disk_bytes: int
    shm_bytes: int
    shared: tuple[Path, ...]
    mounts: Mapping[str, Path]
    files: Mapping[str, Path]
    env: Mapping[str, str]


class Host:
    """A running host. It ends by :meth:`kill`, or with the process that made it."""

    def __init__(self, spec: HostSpec) -> None:
        self.spec = spec
        # The first process waits on this pipe, so it ends when its owner closes it or dies,
        # from whichever thread it was started.
        self._process = subprocess.Popen(
            [*UNSHARE, "--kill-child=KILL", "bash", "-c", _first_process(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={"PATH": os.environ["PATH"]},
        )
        self.pid = self._await_first_process()

    def path(self, path: str) -> Path:
        """Where the machine sees a path of this running host; absolute links lead astray."""
        return Path(f"/proc/{self.pid}/root{path}")

    def expand(self, path: str) -> str:
        """Replace a leading ``~`` by this host's HOME."""
        return self.spec.home + path[1:] if path.startswith("~") else path

    def popen(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        stdin: int | IO[str] | None = subprocess.DEVNULL,
        stdout: int | IO[str] | None = None,
        stderr: int | IO[str] | None = None,
    ) -> subprocess.Popen[str]:
        """Start a command in this host, in HOME, with this host's environment and ``env``.

        The command itself is a child of the returned process: signal it with :func:`send`.
        """
        whole_env = {**self.spec.env, **(env or {})}
        enter = ["nsenter", f"--target={self.pid}"]
        enter += ["--mount", "--net", "--pid", "--ipc", "--uts", "--"]
        return subprocess.Popen(
            [*enter, "env", "-C", self.spec.home, *argv],
            env=whole_env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )

    def exec(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout_s: float = EXEC_TIMEOUT_S,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in this host to its end.

        Raises:
            BedError: It failed (unless ``check`` is False) or ran out of time.
        """
        process = self.popen(argv, env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            send(process, signal.SIGKILL)
            out, err = process.communicate()
            raise BedError(
                f"{self.spec.name}: {shlex.join(argv)} ran over {timeout_s} s: {out}{err}"
            ) from None
        if check and process.returncode:
            raise BedError(
                f"{self.spec.name}: {shlex.join(argv)} exited {process.returncode}: {out}{err}"
            )
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def cut_power(self) -> None:
        """Kill every process of this host at once, without waiting until they are gone."""
        self._process.kill()

    def kill(self) -> None:
        """Kill every process of this host and wait until they are gone; may be called twice."""
        self.cut_power()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        deadline_s = time.monotonic() + GONE_TIMEOUT_S
        while Path(f"/proc/{self.pid}").exists():
            if time.monotonic() > deadline_s:
                raise BedError(f"{self.spec.name}: process {self.pid} does not die")
            time.sleep(0.01)

    def _await_first_process(self) -> int:
        assert self._process.stdout is not None
        printed = []
        for line in self._process.stdout:
            if line == "ready\n":
                return children(self._process.pid)[0]
            printed.append(line)
        raise BedError(f"host {self.spec.name} did not start: {''.join(printed)}")


def children(pid: int) -> list[int]:
    """Process ids of a process's direct children, as the machine numbers them."""
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def send(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Signal the command that :meth:`Host.popen` started, as if from inside its host.

    Raises:
        ProcessLookupError: It has ended already.
    """
    try:
        inside = children(process.pid)
    except FileNotFoundError:
        inside = []
    if not inside:
        raise ProcessLookupError(process.pid)
    os.kill(inside[0], number)


def _first_process(spec: HostSpec) -> str:
    """The script of a host's first process: make the mounts, say so, then reap and wait."""
    quote = shlex.quote
    home = quote(spec.home)
    # The machine's directories that must stay visible are parked while /tmp and /srv are hidden.
    park = "/mnt"
    lines = [
        "set -e",
        f"hostname {quote(spec.name)}",
        "mount --make-rprivate /",
        f"mount -t tmpfs -o size={spec.shm_bytes},mode=1777 tmpfs /dev/shm",
        *(f"mount --bind {quote(str(shown))} {quote(at)}" for at, shown in spec.files.items()),
        f"mount -t tmpfs tmpfs {park}",
        f"mkdir -p {park}/kept {park}/shared",
    ]
    if spec.home_on_machine is not None:
        lines.append(f"mount --bind {quote(str(spec.home_on_machine))} {park}/kept")
    for number, folder in enumerate(spec.shared):
        here = f"{park}/shared/{number}"
        lines += [f"mkdir {here}", f"mount --rbind {quote(str(folder))} {here}"]
    for number, folder in enumerate(spec.mounts.values()):
        here = f"{park}/mounts/{number}"
        lines += [f"mkdir -p {here}", f"mount --rbind {quote(str(folder))} {here}"]
    lines += [
        f"mount -t tmpfs tmpfs {PRIVATE_ROOT}",
        f"mount -t tmpfs -o size={spec.disk_bytes},mode=1777 tmpfs {TMP}",
    ]
    for number, folder in enumerate(spec.shared):
        here, there = f"{park}/shared/{number}", quote(str(folder))
        lines += [f"mkdir -p {there}", f"mount --rbind {here} {there}"]
        lines += [f"mount -o remount,bind,ro {there}"]
    for number, at in enumerate(spec.mounts):
        lines += [f"mkdir -p {quote(at)}", f"mount --rbind {park}/mounts/{number} {quote(at)}"]
    lines.append(f"mkdir -p {home}")
    if spec.home_on_machine is not None:
        lines.append(f"mount --bind {park}/kept {home}")
    else:
        lines.append(f"mount -t tmpfs -o size={spec.disk_bytes} tmpfs {home}")
    lines += [
        f"umount --lazy {park}",
        # Nothing else of the machine can be written, so nothing else can be shared by accident.
        "mount -o remount,bind,ro /",
        "echo ready",
        # bash reaps orphans while it waits; the pipe closes when the owner is done or dead.
        "while read -r _; do :; done",
    ]
    return "\n".join(lines)
