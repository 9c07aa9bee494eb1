"""How much memory a host uses: watches all its processes and its shared memory."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.bed.host import Host

PERIOD_S = 0.02


@dataclass(frozen=True)
class Use:
    """Memory of a host. Page cache is not counted.

    Attributes:
        own_bytes: Private memory of all processes but the raylet: the trial, the home agent, …
        raylet_bytes: Private memory of the raylet, which carries the bytes between nodes.
        store_bytes: What /dev/shm holds. Ray's object store lives there, and its pages stay
            once they were touched: this is the store's high-water mark, not what is in it.
    """

    own_bytes: int = 0
    raylet_bytes: int = 0
    store_bytes: int = 0

    def __sub__(self, other: Use) -> Use:
        return Use(
            self.own_bytes - other.own_bytes,
            self.raylet_bytes - other.raylet_bytes,
            self.store_bytes - other.store_bytes,
        )

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.own_bytes + self.raylet_bytes + self.store_bytes


def use(host: Host) -> Use:
    """What a host uses now."""
    own_bytes = raylet_bytes = 0
    for pid in host_processes(host):
        if _is_raylet(pid):
            raylet_bytes += _private_bytes(pid)
        else:
            own_bytes += _private_bytes(pid)
    shm = os.statvfs(host.path("/dev/shm"))
    return Use(own_bytes, raylet_bytes, (shm.f_blocks - shm.f_bfree) * shm.f_frsize)


def host_processes(host: Host) -> list[int]:
    """All processes in a host's process namespace."""
    wanted = os.readlink(f"/proc/{host.pid}/ns/pid")
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "ns/pid") == wanted:
                    found.append(int(entry.name))
            except OSError:
                continue  # it has ended
    return found


def _private_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def _is_raylet(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/exe").endswith("/raylet")
    except OSError:
        return False


class Watch:
    """Samples hosts while a `with` block runs.

    Attributes:
        extra: Host -> what was used beyond the start, at the moment when that was most.
    """

    def __init__(self, hosts: dict[str, Host]) -> None:
        self._hosts = hosts
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.extra = dict.fromkeys(hosts, Use())

    def __enter__(self) -> Watch:
        self._start = {name: use(host) for name, host in self._hosts.items()}
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(PERIOD_S):
            for name, host in self._hosts.items():
                extra = use(host) - self._start[name]
                if extra.total_bytes > self.extra[name].total_bytes:
                    self.extra[name] = extra
