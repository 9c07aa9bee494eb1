"""Isolated hosts without Ray: for what has to work without it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.bed import need, state_dir
from tests.bed.host import Host
from tests.bed.plan import Plan
from tests.bed.ray_nodes import HEAD
from tests.bed.switch import Switch


class BareHosts:
    """Hosts `head` and others on one switch.

    Args:
        others: Their names.
        shm_bytes: `/dev/shm` of each.
        shared: More directories of the machine that all hosts see, read-only.
    """

    def __init__(
        self, others: Sequence[str] = ("w1",), *, shm_bytes: int = 1 << 30,
        shared: Sequence[Path] = (),
    ) -> None:  # fmt: skip
        self._plan = Plan(
            python=Path(sys.executable).absolute(), cpus={}, bare_hosts=(HEAD, *others),
            object_store_bytes=0, shm_bytes=shm_bytes, disk_bytes=64 << 20, token=None, homes={},
            keep_homes=(), shared=tuple(shared), mounts={}, env={},
        )  # fmt: skip
        self.addresses = self._plan.addresses
        self.hosts: dict[str, Host] = {}

    def __enter__(self) -> BareHosts:
        need.require()
        self._dir = state_dir.make()
        self.switch = Switch()
        try:
            for name, address in self.addresses.items():
                self.hosts[name] = Host(self._plan.host_spec(name, self._dir))
                self.switch.plug_in(name, self.hosts[name].pid, address)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """End every host and the network."""
        for host in self.hosts.values():
            host.cut_power()  # all at once: each takes a second to be gone
        for host in self.hosts.values():
            host.kill()
        self.switch.close()
        shutil.rmtree(self._dir, ignore_errors=True)
