"""Where the demo runs: three isolated hosts, or one machine where those are not allowed."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.bed import Cluster, need

WORKERS = ("w1", "w2")
WORKER_CPUS = 2
OBJECT_STORE_BYTES = 200_000_000


@dataclass(frozen=True, slots=True)
class Hosts:
    """A running head, where drivers run, and two workers.

    Attributes:
        start: Starts a program on the head, given its errors' file; its output is a pipe.
        kill: Ends a worker without warning.
        driver_home: The head's HOME, as this process sees it.
    """

    start: Callable[[list[str], IO[str]], subprocess.Popen[str]]
    kill: Callable[[str], None]
    driver_home: Path


def why_not_isolated() -> list[str]:
    """What keeps this machine from running isolated hosts; empty where nothing does.

    Not root: tries to become root of a user namespace, and then does not return.
    """
    if os.geteuid() != 0 and _may_become_root():
        need.become_root()
    return need.missing()


@contextmanager
def isolated_hosts() -> Iterator[Hosts]:
    """Each host has a network, processes, shared memory and disks of its own."""
    with Cluster(
        len(WORKERS), worker_cpus=WORKER_CPUS, object_store_bytes=OBJECT_STORE_BYTES
    ) as cluster:  # it ends with an error if the hosts share anything
        head = cluster.host("head")

        def start(argv: list[str], errors: IO[str]) -> subprocess.Popen[str]:
            return cluster.popen("head", argv, stdout=subprocess.PIPE, stderr=errors)

        yield Hosts(start, cluster.kill, head.path(head.expand("~")))


@contextmanager
def one_machine() -> Iterator[Hosts]:
    """Ray's own one-machine cluster: three nodes that share disk, memory and network."""
    with tempfile.TemporaryDirectory(prefix="demo-", ignore_cleanup_errors=True) as top:
        # Ray's locks in /tmp belong to whoever used Ray first on this machine, and it stumbles
        # over those of another user.
        os.environ["RAY_TMPDIR"] = top
        home = Path(top, "home")
        home.mkdir()
        with _ray_nodes() as (address, kill):

            def start(argv: list[str], errors: IO[str]) -> subprocess.Popen[str]:
                env = {**os.environ, "HOME": str(home), "RAY_ADDRESS": address}
                return subprocess.Popen(
                    argv, env=env, text=True,
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                )  # fmt: skip

            yield Hosts(start, kill, home)


@contextmanager
def _ray_nodes() -> Iterator[tuple[str, Callable[[str], None]]]:
    """A head and two workers; their address, and what kills a worker."""
    from ray.cluster_utils import Cluster as RayCluster

    cluster = RayCluster()
    try:
        cluster.add_node(num_cpus=0, object_store_memory=OBJECT_STORE_BYTES)
        nodes = {
            name: cluster.add_node(
                num_cpus=WORKER_CPUS, resources={name: 8}, object_store_memory=OBJECT_STORE_BYTES
            )
            for name in WORKERS
        }

        def kill(name: str) -> None:
            cluster.remove_node(nodes[name], allow_graceful=False)

        yield cluster.address, kill
    finally:
        cluster.shutdown()


def _may_become_root() -> bool:
    as_root = ["unshare", "--user", "--map-root-user", "--mount", "--"]
    argv = [*as_root, *need.UNSHARE, "sh", "-c", need.PROBE]
    try:
        probe = subprocess.run(argv, capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return probe.returncode == 0
