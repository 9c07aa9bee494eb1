"""A Ray cluster on isolated hosts: a head, workers, and whatever happens to them."""

from __future__ import annotations

import itertools
import json
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.bed import need, state_dir
from tests.bed.driver import drive, driver_argv
from tests.bed.errors import BedError, DriverError
from tests.bed.host import EXEC_TIMEOUT_S, TMP, Host
from tests.bed.isolation import assert_isolated
from tests.bed.plan import Plan
from tests.bed.ray_nodes import HEAD, RayNodes
from tests.bed.switch import Switch
from tests.bed.tree import Entry

UP_TIMEOUT_S = 120.0
DEATH_TIMEOUT_S = 90.0
TREE_TIMEOUT_S = 300.0


class Cluster:
    """Ray on hosts ``head``, ``w1``, ``w2``, ... and, if asked for, ``driver``.

    Every host is on its own: network, address, processes, ``/dev/shm``, ``/tmp`` and HOME. All
    see the machine's files, read-only. Each has a Ray resource of its own name (8 of it), to
    pin trials with. Everything ends on exit, and also when this process is killed.

    Args:
        worker_count: How many workers.
        python: The interpreter, in an environment that has Ray; default: this one.
        worker_cpus: Ray CPUs of each worker.
        head_cpus: Ray CPUs of the head.
        driver_host: Add a host ``driver``: a plain node of the cluster with no CPUs.
        bare_hosts: Names of more hosts, without Ray (say, for a storage server).
        object_store_bytes: Ray's object store on each host.
        shm_bytes: ``/dev/shm`` of each host.
        disk_bytes: ``/tmp`` and HOME of each host, each of this size.
        auth: "token" or "disabled". Ray before token authentication ignores it.
        homes: HOME of a host where it shall not be ``/srv/home``. A path below ``/srv`` does
            not exist on the other hosts.
        keep_homes: Hosts whose HOME survives :meth:`kill` and :meth:`start`.
        shared: More directories of the machine that all hosts see, read-only.
        mounts: Host -> a directory of it below ``/srv`` -> a directory of the machine that is
            bound there and that the host may write. The same one in several hosts is what a
            network file system would be.
        env: Added to the environment of every host, Ray's own processes included.
    """

    def __init__(
        self,
        worker_count: int = 2,
        *,
        python: str | Path = sys.executable,
        worker_cpus: int = 1,
        head_cpus: int = 0,
        driver_host: bool = False,
        bare_hosts: Sequence[str] = (),
        object_store_bytes: int = 400_000_000,
        shm_bytes: int = 2 << 30,
        disk_bytes: int = 4 << 30,
        auth: str = "token",
        homes: Mapping[str, str] | None = None,
        keep_homes: Sequence[str] = (),
        shared: Sequence[str | Path] = (),
        mounts: Mapping[str, Mapping[str, Path]] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        if auth not in ("token", "disabled"):
            raise ValueError(f'auth must be "token" or "disabled", not {auth!r}')
        self.python = Path(python).absolute()
        self.workers = [f"w{i}" for i in range(1, worker_count + 1)]
        cpus = {HEAD: head_cpus} | dict.fromkeys(self.workers, worker_cpus)
        if driver_host:
            cpus["driver"] = 0
        self._plan = Plan(
            python=self.python,
            cpus=cpus,
            bare_hosts=tuple(bare_hosts),
            object_store_bytes=object_store_bytes,
            shm_bytes=shm_bytes,
            disk_bytes=disk_bytes,
            token=secrets.token_hex(32) if auth == "token" else None,
            homes=dict(homes or {}),
            keep_homes=tuple(keep_homes),
            shared=tuple(Path(p).absolute() for p in shared),
            mounts={name: dict(places) for name, places in (mounts or {}).items()},
            env=dict(env or {}),
        )
        self.addresses = self._plan.addresses
        self._hosts: dict[str, Host] = {}
        self._drive_numbers = itertools.count(1)  # several threads may drive
        self._keep_logs = False

    def __enter__(self) -> Cluster:
        need.require()
        self.dir = state_dir.make()
        plan = self._plan
        self._ray = RayNodes(
            plan.python, self.dir, plan.cpus, plan.addresses, plan.object_store_bytes
        )
        self._switch = Switch()
        try:
            for name in plan.addresses:
                self._make_host(name)
            self.assert_isolated()
            self._start_ray(plan.cpus, UP_TIMEOUT_S)
        except BaseException:
            self._keep_logs = True
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._keep_logs |= kind is not None
        self.close()

    def close(self) -> None:
        """End every host and the network. Logs stay where something failed."""
        if self._keep_logs:
            self.save_logs()
            (self.dir / state_dir.KEPT).touch()
            sys.stderr.write(f"bed: logs are kept in {self.dir}\n")
        for host in self._hosts.values():
            host.cut_power()  # all at once: each takes a second to be gone
        for name in list(self._hosts):
            self._hosts.pop(name).kill()
            self._ray.forget(name)
        self._switch.close()
        if not self._keep_logs:
            shutil.rmtree(self.dir, ignore_errors=True)

    # -- what is there ---------------------------------------------------------------------

    def host(self, name: str) -> Host:
        """A running host.

        Raises:
            BedError: There is no such host, or it was killed.
        """
        if name not in self._hosts:
            raise BedError(f"no running host {name!r}; running: {sorted(self._hosts)}")
        return self._hosts[name]

    def alive(self) -> set[str]:
        """Names of the hosts that Ray's head holds for alive."""
        return self._ray.alive()

    def wait_alive(self, *names: str, timeout_s: float = UP_TIMEOUT_S) -> float:
        """Wait until Ray holds these hosts for alive; returns the seconds it took."""
        return self._ray.wait_until(lambda alive: {*names} <= alive, f"{names} alive", timeout_s)

    def wait_dead(self, name: str, timeout_s: float = DEATH_TIMEOUT_S) -> float:
        """Wait until Ray has noticed that a host is gone; returns the seconds it took."""
        return self._ray.wait_until(lambda alive: name not in alive, f"{name} dead", timeout_s)

    def tree(self, name: str, path: str) -> dict[str, Entry]:
        """What a host has under a directory (``~`` is its HOME); see ``tree_digest``."""
        host = self.host(name)
        argv = [str(self.python), "-m", "tests.bed.tree", host.expand(path)]
        found = json.loads(host.exec(argv, timeout_s=TREE_TIMEOUT_S).stdout)
        return {key: (kind, size, digest) for key, (kind, size, digest) in found.items()}

    def assert_isolated(self) -> None:
        """Show that the running hosts share nothing; see ``isolation.py``."""
        assert_isolated(self._hosts)

    # -- running things --------------------------------------------------------------------

    def exec(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout_s: float = EXEC_TIMEOUT_S,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a host to its end; see :meth:`Host.exec`."""
        return self.host(name).exec(argv, env, timeout_s, check)

    def popen(
        self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None, **streams: Any
    ) -> subprocess.Popen[str]:
        """Start a command in a host; see :meth:`Host.popen`. It dies with the host."""
        return self.host(name).popen(argv, env, **streams)

    def drive(
        self,
        name: str,
        script: str | Path,
        args: Sequence[object] = (),
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 240.0,
        echo: bool = False,
    ) -> dict[str, Any]:
        """Run a driver script in a host and return what its last ``RESULT {json}`` line says.

        Args:
            name: The host.
            script: A file (relative to the repository) or a module's dotted name.
            args: Its arguments.
            env: Added to the host's environment.
            timeout_s: It is killed after this long.
            echo: Show its lines on standard error as they come.

        Raises:
            DriverError: It failed; holds the output, whose log is kept.
        """
        host = self.host(name)
        log = self.dir / f"drive-{next(self._drive_numbers)}-{Path(script).stem}-{name}.log"
        try:
            argv = driver_argv(host, self.python, script, args)
            return drive(host, argv, log, env, timeout_s, echo)
        except DriverError:
            self._keep_logs = True
            raise

    # -- what can happen to a host ---------------------------------------------------------

    def kill(self, *names: str) -> None:
        """Power cut: nothing that the hosts say any more is heard, then all of them is gone.

        Their disks are gone too, unless it is one of ``keep_homes`` (then HOME is kept).
        """
        hosts = {name: self.host(name) for name in names}
        for name in hosts:
            self._switch.cut(name)
            del self._hosts[name]
        for host in hosts.values():
            host.cut_power()  # all at once: each takes a second to be gone
        for name, host in hosts.items():
            host.kill()
            self._ray.forget(name)
            self._switch.unplug(name)

    def start(self, *names: str, timeout_s: float = UP_TIMEOUT_S) -> None:
        """Start killed hosts again, or Ray again in hosts where it has ended."""
        for name in names:
            if name not in self._hosts:
                self._make_host(name)
        self._start_ray(names, timeout_s)

    def cut(self, name: str) -> None:
        """Pull the network cable. Ray gives the node up after about ten seconds; see HEALTH_ENV."""
        self._switch.cut(name)

    def heal(self, name: str) -> None:
        """Put the network cable back. A node that Ray gave up stays out: :meth:`start`."""
        self._switch.heal(name)

    def slow(
        self,
        name: str,
        *,
        delay_ms: float = 0.0,
        rate_mbit: float | None = None,
        loss_pct: float = 0.0,
    ) -> None:
        """Make a host's cable slow or lossy, the same in each direction.

        Args:
            name: The host.
            delay_ms: Added to every frame, so a round trip takes twice that longer.
            rate_mbit: At most this many megabits a second; None: no limit.
            loss_pct: Frames lost. A frame may be up to 64 KiB here, so a little goes far.
        """
        self._switch.bend(name, delay_ms, rate_mbit, loss_pct)

    def close_ports(self, name: str) -> None:
        """Put a firewall before a host: of the ports that Linux hands out, those are closed on
        which nothing listens now.
        """
        listening = self.exec(name, ["ss", "-Htln"]).stdout.splitlines()
        ports = [int(line.split()[3].rpartition(":")[2]) for line in listening]
        self._switch.bend(name, 0.0, None, 0.0, ports)

    def fast(self, name: str) -> None:
        """Undo :meth:`slow` and :meth:`close_ports`."""
        self._switch.straighten(name)

    def small_disk(self, name: str, path: str, size_bytes: int) -> None:
        """Mount an empty disk of this size at a path (made if missing) of a host."""
        at = self.host(name).expand(path)
        self.exec(name, ["mkdir", "-p", at])
        self.exec(name, ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", at])

    def read_only(self, name: str, path: str) -> None:
        """Make everything under a directory of a host refuse writes from now on."""
        at = self.host(name).expand(path)
        self.exec(name, ["mount", "--bind", at, at])
        self.exec(name, ["mount", "-o", "remount,bind,ro", at])

    def unmount(self, name: str, path: str) -> None:
        """Undo :meth:`small_disk` (what is on it is lost) or :meth:`read_only`."""
        self.exec(name, ["umount", "--lazy", self.host(name).expand(path)])

    def keep_logs(self) -> None:
        """Leave all logs where they are when this ends, as after a failure."""
        self._keep_logs = True

    def save_logs(self) -> None:
        """Copy Ray's logs of every running host next to the drivers' logs."""
        for name, host in self._hosts.items():
            for session in host.path(f"{TMP}/ray").glob("session_2*/logs"):
                to = self.dir / name / session.parent.name
                shutil.copytree(session, to, dirs_exist_ok=True, symlinks=True)

    def _make_host(self, name: str) -> None:
        host = Host(self._plan.host_spec(name, self.dir))
        self._hosts[name] = host
        self._switch.plug_in(name, host.pid, self.addresses[name])

    def _start_ray(self, names: Iterable[str], timeout_s: float) -> None:
        hosts = {name: self.host(name) for name in names if name in self._plan.cpus}
        self._ray.start(hosts, timeout_s)
