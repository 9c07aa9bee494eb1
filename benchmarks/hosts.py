"""The two hosts of the benchmark with everything on them that measures."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from benchmarks import old_ray
from benchmarks.cases import Case
from benchmarks.orders import Helper
from tests.bed import Cluster

WORKER = "w1"
HEAD = "head"
SOURCES = "/srv/home/sources"
OLD_RAY_UP_S = 60.0
MAKE_FILES = (
    "import sys; from pathlib import Path; from benchmarks.cases import CASES, make_files; "
    "[make_files(Path(sys.argv[1]), CASES[name]) for name in sys.argv[2:]]"
)


class Hosts:
    """A driver's host and a worker, both with tune_sync's Ray, Ray 2.6.3 and plain sockets.

    The driver's HOME lies on the machine's disk, so that syncing costs what it costs. The
    files to send lie on the worker's HOME, in memory: page cache.

    Args:
        cases: What will be sent.
        store_bytes: Size of each object store.
        old_python: Interpreter of the environment with Ray 2.6.3; None: without it.
    """

    def __init__(self, cases: list[Case], store_bytes: int, old_python: Path | None) -> None:
        self._cases = cases
        self._store_bytes = store_bytes
        self._old_python = old_python
        self._old_count = 0
        self._stack = ExitStack()

    def __enter__(self) -> Hosts:
        tempfile.tempdir = self._stack.enter_context(fresh_place())
        shared = [self._old_python.parent.parent] if self._old_python else []
        self.cluster = Cluster(
            worker_count=1, object_store_bytes=self._store_bytes, keep_homes=(HEAD,),
            shm_bytes=3 * self._store_bytes, disk_bytes=8 << 30, shared=shared,
        )  # fmt: skip
        try:
            self._stack.enter_context(self.cluster)
            self._start()
        except BaseException:
            self._stack.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._stack.__exit__(kind, error, trace)

    def send(self, path: str, case: Case) -> dict[str, Any]:
        """Send a case over one path once; returns at least `seconds`."""
        order: dict[str, Any] = {"directory": f"{SOURCES}/{case.name}"}
        if path.startswith("tcp"):
            _, to, streams = path.split("-")
            return self._tcp.ask(**order, to=to, streams=int(streams))
        if path == "old":
            self._old_count += 1
            return self._old.ask(**order, target=f"/srv/home/old/{self._old_count}")
        return self._new.ask(**order, path=path, total_bytes=case.total_bytes)

    def file_system(self) -> str:
        """Kind of file system that the driver's HOME is on."""
        argv = ["stat", "--file-system", "--format=%T", "/srv/home"]
        return self.cluster.exec(HEAD, argv).stdout.strip()

    def _start(self) -> None:
        python, addresses = str(self.cluster.python), self.cluster.addresses
        names = [case.name for case in self._cases]
        self.cluster.exec(WORKER, [python, "-c", MAKE_FILES, SOURCES, *names], timeout_s=120)
        self._new = self._helper(HEAD, [python, "-m", "benchmarks.new_ray", WORKER])
        receiver = self._popen(HEAD, [python, "-m", "benchmarks.tcp", "serve", "/srv/home/tcp"])
        assert receiver.stdout is not None
        receiver.stdout.readline()
        self._tcp = self._helper(WORKER, [python, "-m", "benchmarks.tcp", "send", addresses[HEAD]])
        if self._old_python is not None:
            self._start_old_ray(self._old_python)

    def _start_old_ray(self, python: Path) -> None:
        addresses, ray = self.cluster.addresses, python.parent / "ray"
        for host in (HEAD, WORKER):
            head = None if host == HEAD else addresses[HEAD]
            argv = old_ray.start_argv(ray, addresses[host], head, self._store_bytes)
            log = self._stack.enter_context((self.cluster.dir / f"old-{host}.log").open("w"))
            self.cluster.popen(host, argv, self._old_env(), stdout=log, stderr=subprocess.STDOUT)
            if host == HEAD:
                self._await_port(old_ray.PORT)
        argv = [str(python), "-m", "benchmarks.old_ray", addresses[HEAD], addresses[WORKER]]
        self._old = self._helper(HEAD, argv, self._old_env())

    def _old_env(self) -> dict[str, str]:
        return {"RAY_ADDRESS": f"{self.cluster.addresses[HEAD]}:{old_ray.PORT}"}

    def _await_port(self, port: int) -> None:
        deadline_s = time.monotonic() + OLD_RAY_UP_S
        probe = f"exec 3<>/dev/tcp/{self.cluster.addresses[HEAD]}/{port}"
        while self.cluster.exec(HEAD, ["bash", "-c", probe], check=False).returncode:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"Ray 2.6.3 is not up; see {self.cluster.dir}")
            time.sleep(0.2)

    def _helper(self, host: str, argv: list[str], env: dict[str, str] | None = None) -> Helper:
        helper = Helper(" ".join(argv[1:3]), self._popen(host, argv, env))
        self._stack.callback(helper.close)
        return helper

    def _popen(
        self, host: str, argv: list[str], env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        name = argv[2].replace(".", "-") + f"-{host}.log"
        log: IO[str] = self._stack.enter_context((self.cluster.dir / name).open("a"))
        return self.cluster.popen(
            host, argv, env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )


@contextmanager
def fresh_place() -> Iterator[str]:
    """A temporary directory in a part of the disk of its own, where ext4 can do that.

    What other programs have just deleted nearby would slow down every file that is created.
    """
    usual = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="bench-") as above:
        subprocess.run(["chattr", "+T", above], check=False, capture_output=True)
        place = Path(above, "hosts")
        place.mkdir()
        try:
            yield str(place)
        finally:
            tempfile.tempdir = usual


__all__ = ["HEAD", "WORKER", "Hosts", "fresh_place"]
