"""How much memory the processes of a host take while something happens."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bed import Cluster

EVERY_S = 0.02
LOOK_FOR_NEW_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one kind of process of one host.

    Attributes:
        at_s: Seconds since the epoch.
        own_bytes: Memory of the process's own (anonymous), of the largest such process.
        store_bytes: Pages of the object store that hold anything, of the whole host.
    """

    at_s: float
    own_bytes: int
    store_bytes: int


@dataclass
class Watched:
    """Samples of the processes on `host` whose title starts with `title`."""

    host: str
    title: str
    samples: list[Sample] = field(default_factory=list)

    def extra_bytes(self, window_s: list[float]) -> tuple[int, int]:
        """By how much (own, store) grew in a window at most, against right before it."""
        start_s, end_s = window_s
        before = [s for s in self.samples if s.at_s < start_s]
        during = [s for s in self.samples if start_s <= s.at_s <= end_s]
        assert before, f"no sample of {self.title} on {self.host} before the window"
        assert len(during) > 3, f"{len(during)} samples of {self.title} on {self.host}"
        own = max(s.own_bytes for s in during) - before[-1].own_bytes
        return own, max(s.store_bytes for s in during) - before[-1].store_bytes


@contextmanager
def watch(cluster: Cluster, wanted: Mapping[str, tuple[str, str]]) -> Iterator[dict[str, Watched]]:
    """Sample processes, given as name -> (host, start of the process's title)."""
    watched = {name: Watched(host, title) for name, (host, title) in wanted.items()}
    stop = threading.Event()
    thread = threading.Thread(target=_sample, args=(cluster, watched, stop), daemon=True)
    thread.start()
    try:
        yield watched
    finally:
        stop.set()
        thread.join()


def processes(cluster: Cluster, host: str, title: str) -> list[int]:
    """Ids, as the machine numbers them, of a host's processes whose title starts so."""
    inside = os.readlink(f"/proc/{cluster.host(host).pid}/ns/pid")
    found = []
    for entry in Path("/proc").iterdir():
        try:
            here = entry.name.isdigit() and os.readlink(entry / "ns/pid") == inside
            if here and (entry / "cmdline").read_bytes().startswith(title.encode()):
                found.append(int(entry.name))
        except OSError:
            continue  # it ended meanwhile
    return found


def _sample(cluster: Cluster, watched: dict[str, Watched], stop: threading.Event) -> None:
    pids: dict[str, list[int]] = {}
    looked_s = 0.0
    while not stop.wait(EVERY_S):
        if time.monotonic() - looked_s > LOOK_FOR_NEW_EVERY_S:
            pids = {n: processes(cluster, w.host, w.title) for n, w in watched.items()}
            looked_s = time.monotonic()
        for name, one in watched.items():
            own = [_own_bytes(pid) for pid in pids[name]]
            if own:
                one.samples.append(Sample(time.time(), max(own), _store_bytes(cluster, one.host)))


def _own_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


def _store_bytes(cluster: Cluster, host: str) -> int:
    found = os.statvfs(cluster.host(host).path("/dev/shm"))
    return (found.f_blocks - found.f_bfree) * found.f_frsize
