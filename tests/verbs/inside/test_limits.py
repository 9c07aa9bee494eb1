"""A container may be allowed few objects of a device: `rdma.max` of its control group."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.verbs.inside.elsewhere import make
from tests.verbs.inside.keeper import TOKEN, keep
from tests.verbs.inside.others import running
from tests.verbs.inside.sides import content, digest
from tune_sync.errors import StoreFullError
from tune_sync.fastpath.transports import Part, RdmaTransport

GROUPS = Path("/sys/fs/cgroup")
MIB = 1 << 20
SOON_S = 60.0
Allow = Callable[[str], None]


def limit(group: Path, most: str) -> None:
    (group / "rdma.max").write_text(f"rxe0 {most}")


@pytest.fixture
def allow() -> Iterator[Callable[[int], Allow]]:
    """Says how many objects a process may have more than those that it has."""
    if not (GROUPS / "cgroup.controllers").exists():
        subprocess.run(["mount", "-t", "cgroup2", "none", str(GROUPS)], check=True)
    (GROUPS / "cgroup.subtree_control").write_text("+rdma")
    group = GROUPS / "few"
    group.mkdir(exist_ok=True)

    def of(process: int) -> Allow:
        (group / "cgroup.procs").write_text(str(process))
        return partial(limit, group)

    yield of
    limit(group, "hca_handle=max hca_object=max")
    (GROUPS / "cgroup.procs").write_text(str(os.getpid()))


def test_a_process_that_may_have_no_more_objects_is_told(
    allow: Callable[[int], Allow],
) -> None:
    with running(make) as other:
        allow(other.process.pid)("hca_handle=0 hca_object=0")
        for what in ("connection", "memory", "device"):
            assert other.ask("make", what=what).startswith("StoreFullError: ")
            assert "rdma.max" in other.ask("make", what=what)


def test_a_peer_is_told_that_the_other_host_has_no_more_connections(
    allow: Callable[[int], Allow],
) -> None:
    transport, data = RdmaTransport(TOKEN), content(MIB)
    with running(keep, "127.0.0.1") as keeper, transport.register(data) as region:
        most = allow(keeper.process.pid)
        most("hca_handle=0 hca_object=0")
        with (
            transport.connect(keeper.told) as peer,
            peer.reserve("k", MIB) as upload,
            pytest.raises(StoreFullError, match=r"no more connections.*rdma\.max"),
        ):
            upload.write(region, [Part(0, 0, MIB)]).wait(SOON_S)
        most("hca_handle=max hca_object=max")
        with transport.connect(keeper.told) as peer, peer.reserve("k", MIB) as upload:
            upload.write(region, [Part(0, 0, MIB)]).wait(SOON_S)
            upload.publish()
        assert keeper.ask("digest", key="k") == digest(data)
