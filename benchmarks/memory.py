"""How much memory a host uses: watches all its processes and its shared memory."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import TracebackType

from tests.bed.host import Host

PERIOD_S = 0.02


def used_bytes(host: Host) -> tuple[int, int]:
    """(private memory of all processes of a host, bytes that its /dev/shm holds).

    Ray's object store lives in /dev/shm. Its pages stay allocated once they were touched, so
    this counts the store's high-water mark, not what is in it now. Page cache is not counted.
    """
    private_bytes = sum(_private_bytes(pid) for pid in host_processes(host))
    shm = os.statvfs(host.path("/dev/shm"))
    return private_bytes, (shm.f_blocks - shm.f_bfree) * shm.f_frsize


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


class Watch:
    """Samples hosts while a `with` block runs.

    Attributes:
        extra_bytes: Host -> (private, shared) at the moment when both together were highest,
            beyond what was used at the start.
    """

    def __init__(self, hosts: dict[str, Host]) -> None:
        self._hosts = hosts
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.extra_bytes: dict[str, tuple[int, int]] = dict.fromkeys(hosts, (0, 0))

    def __enter__(self) -> Watch:
        self._start = {name: used_bytes(host) for name, host in self._hosts.items()}
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.is_set():
            for name, host in self._hosts.items():
                private, shared = used_bytes(host)
                extra = private - self._start[name][0], shared - self._start[name][1]
                if sum(extra) > sum(self.extra_bytes[name]):
                    self.extra_bytes[name] = extra
            time.sleep(PERIOD_S)
