"""What the hosts of a cluster shall be, worked out before any of them is started."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tests.bed.errors import BedError
from tests.bed.host import DEFAULT_HOME, PRIVATE_ROOT, TMP, HostSpec
from tests.bed.ray_node import REPOSITORY, host_env
from tests.bed.ray_nodes import HEAD
from tests.bed.switch import NETWORK

FIRST_ADDRESS = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """A cluster's hosts. The fields are those arguments of ``Cluster`` that they come from."""

    python: Path
    cpus: dict[str, int]
    bare_hosts: tuple[str, ...]
    object_store_bytes: int
    shm_bytes: int
    disk_bytes: int
    token: str | None
    homes: dict[str, str]
    keep_homes: tuple[str, ...]
    shared: tuple[Path, ...]
    mounts: dict[str, dict[str, Path]]
    env: dict[str, str]

    @property
    def addresses(self) -> dict[str, str]:
        """Host -> its address."""
        names = [*self.cpus, *self.bare_hosts]
        return {name: f"{NETWORK}.{FIRST_ADDRESS + i}" for i, name in enumerate(names)}

    def host_spec(self, name: str, state: Path) -> HostSpec:
        """What one host is made of; makes the files on the machine that it needs.

        Raises:
            BedError: Its HOME cannot be where it shall be.
        """
        home = self.homes.get(name, DEFAULT_HOME)
        if not home.startswith(f"{PRIVATE_ROOT}/") and not Path(home).is_dir():
            raise BedError(f"HOME of {name} must be below {PRIVATE_ROOT} or exist; it is {home}")
        kept = state / "homes" / name if name in self.keep_homes else None
        if kept is not None:
            kept.mkdir(parents=True, exist_ok=True)
        env = host_env(self.python, home, self.addresses[HEAD], self.token)
        return HostSpec(
            name=name,
            address=self.addresses[name],
            home=home,
            home_on_machine=kept,
            disk_bytes=self.disk_bytes,
            shm_bytes=self.shm_bytes,
            shared=self._shared_below_private_places(),
            mounts=self.mounts.get(name, {}),
            files=self._name_files(state),
            env=env | self.env,
        )

    def _shared_below_private_places(self) -> tuple[Path, ...]:
        """The repository and the interpreter, where a host's own disks would hide them."""
        venv = self.python.parent.parent
        base = self.python.resolve().parent.parent
        wanted = {REPOSITORY, venv, base, Path(sys.prefix), Path(sys.base_prefix), *self.shared}
        hidden = (Path(TMP), Path(PRIVATE_ROOT))
        below = {path for path in wanted if any(path.is_relative_to(top) for top in hidden)}
        return tuple(sorted(below))

    def _name_files(self, state: Path) -> dict[str, Path]:
        """Names of all hosts, and no name server: a lookup must not wait for one."""
        lines = ["127.0.0.1 localhost", *(f"{at} {name}" for name, at in self.addresses.items())]
        hosts, resolver = state / "hosts", state / "resolv.conf"
        hosts.write_text("\n".join(lines) + "\n")
        resolver.touch()
        files = {"/etc/hosts": hosts, "/etc/resolv.conf": resolver}
        return {at: shown for at, shown in files.items() if Path(at).exists()}
