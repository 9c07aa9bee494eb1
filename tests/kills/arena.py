"""The hosts: a head and a worker that can be killed, and a store that stays."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.bed import Cluster
from tests.bed.driver import RESULT, driver_argv
from tests.bed.host import send
from tests.stores.seaweed import KEY, SECRET, S3Server, weed_argv

BUCKET = "bucket/results"
URL = f"s3://{BUCKET}"
NOTES = "/srv/notes"  # on the hosts; a directory of the machine, so it survives all of them
S3_PORT = 8333
PORTS = (S3_PORT, 9333, 9340, 8888, 23646)
CABLE_MS = 10.0  # each way: a request takes 20 ms longer
# Everything in the bucket is in memory. The store is made anew once it holds so much.
FULL_BYTES = 2 << 30
DISK_BYTES = 6 << 30
TAIL_CHARS = 3000
AGENTS = ["pgrep", "-f", "^ray::NodeAgent"]
HEAD, WORKER = "head", "w1"
RAY_HOSTS = (HEAD, WORKER)


class Life:
    """A driver, from its start until it is killed or ends."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def kill(self) -> None:
        """SIGKILL, if it has not ended."""
        with suppress(ProcessLookupError):
            send(self._process, signal.SIGKILL)
        self._process.wait()

    @property
    def has_ended(self) -> bool:
        """Whether it ended, by whomever."""
        return self._process.poll() is not None

    def output(self) -> str:
        """The end of what it printed."""
        return self._log.read_text(errors="replace")[-TAIL_CHARS:]

    def result(self, timeout_s: float) -> dict[str, Any]:
        """Wait for its end; what it printed as its result, or why there is none."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return {"errors": [f"it does not end within {timeout_s} s: {self.output()}"]}
        lines = self._log.read_text(errors="replace").splitlines()
        found = [line for line in lines if line.startswith(RESULT)]
        if self._process.returncode or not found:
            return {"errors": [f"it exited {self._process.returncode}: {self.output()}"]}
        result: dict[str, Any] = json.loads(found[-1].removeprefix(RESULT))
        return result


class Arena:
    """Shared by many experiments, one after the other.

    Args:
        rate_mbit: How fast the cable of the store is, each way; None: no limit.

    Attributes:
        notes: What `NOTES` is, on the machine.
        cluster: The hosts.
    """

    def __init__(self, rate_mbit: float | None = None) -> None:
        self._rate_mbit = rate_mbit
        self._stack = ExitStack()
        self._lives_count = 0

    def __enter__(self) -> Arena:
        try:
            self._enter()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _enter(self) -> None:
        self.notes = Path(tempfile.mkdtemp(prefix="kills-"))
        self._stack.callback(shutil.rmtree, self.notes, ignore_errors=True)
        self._server = S3Server(f"http://store:{S3_PORT}")
        self.cluster = self._stack.enter_context(
            Cluster(
                worker_count=1, worker_cpus=2, head_cpus=2, bare_hosts=["store"],
                disk_bytes=DISK_BYTES, env=self._server.env,
                mounts={name: {NOTES: self.notes} for name in RAY_HOSTS},
            )
        )  # fmt: skip
        self._start_store()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._stack.__exit__(kind, error, trace)

    # The store

    def named(self, name: str) -> list[dict[str, Any]]:
        """The checkpoints that an experiment's state names, each opened."""
        found: list[dict[str, Any]] = self._ask("named", name)
        return found

    def published(self, name: str) -> dict[int, int]:
        """Index of a trial -> the step of its newest checkpoint that has a manifest."""
        return {int(index): step for index, step in self._ask("published", name).items()}

    def age_lease(self, name: str) -> None:
        """As if the time had passed after which a lease is free, where its host is gone."""
        self._ask("age", name)

    def _ask(self, verb: str, name: str = "") -> Any:
        streams = self._reader.stdin, self._reader.stdout
        if streams[0] is None or streams[1] is None:
            raise OSError("the reader has no pipes")
        path = f"{BUCKET}/{name}" if name else BUCKET
        streams[0].write(json.dumps([verb, path]) + "\n")
        streams[0].flush()
        for line in streams[1]:
            if line.startswith("ANSWER "):
                return json.loads(line.removeprefix("ANSWER "))
        raise OSError(f"the reader has ended; see {self.cluster.dir}/reader.log")

    def make_room(self) -> None:
        """A new store, if the one that is there is full. No experiment may be under way."""
        disk = shutil.disk_usage(self.cluster.host("store").path("/tmp"))
        if disk.used > FULL_BYTES:
            self._end_reader()
            self.cluster.kill("store")
            self.cluster.start("store")
            self._start_store()

    def _start_store(self) -> None:
        cluster = self.cluster
        address = cluster.addresses["store"]
        cluster.exec("store", ["mkdir", "-p", "/tmp/weed"])
        env = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        argv = weed_argv(Path("/tmp/weed"), address, PORTS)
        with open(cluster.dir / "store.log", "wb") as log:
            cluster.popen("store", argv, env, stdout=log, stderr=log)
        with open(cluster.dir / "reader.log", "a") as log:
            self._reader = cluster.popen(
                "store", [str(cluster.python), "-m", "tests.kills.reader"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        self._stack.callback(self._end_reader)
        self._ask("make")
        cluster.slow("store", delay_ms=CABLE_MS, rate_mbit=self._rate_mbit)

    def _end_reader(self) -> None:
        for stream in (self._reader.stdin, self._reader.stdout):
            if stream is not None:
                stream.close()
        self._reader.wait()

    # What runs and is killed

    def start(self, spec: dict[str, Any]) -> Life:
        """Start a driver on the head."""
        self._lives_count += 1
        log = self.cluster.dir / f"driver-{spec['name']}-{self._lives_count}.log"
        argv = driver_argv(
            self.cluster.host(HEAD), self.cluster.python, "tests/kills/driver.py",
            [json.dumps({"url": URL, **spec})],
        )  # fmt: skip
        with open(log, "w") as out:
            process = self.cluster.popen(HEAD, argv, stdout=out, stderr=subprocess.STDOUT)
        return Life(process, log)

    def kill_cluster(self) -> None:
        """Every process of every Ray host, at once."""
        self.cluster.kill(*RAY_HOSTS)

    def start_cluster(self) -> None:
        """A new cluster on new hosts."""
        self.cluster.start(*RAY_HOSTS)

    def kill_agent(self, chance: random.Random) -> bool:
        """The agent of a node, if there is any; whether there was."""
        found = [
            (name, pid)
            for name in RAY_HOSTS
            for pid in self.cluster.exec(name, AGENTS, check=False).stdout.split()
        ]
        if found:
            name, pid = chance.choice(found)
            self.cluster.exec(name, ["kill", "-KILL", pid], check=False)
        return bool(found)

    def kill_worker(self) -> None:
        """The host of the worker."""
        self.cluster.kill(WORKER)

    def renew_worker(self) -> None:
        """Wait until Ray has noticed that the worker is gone, and start another one."""
        self.cluster.wait_dead(WORKER)
        self.cluster.start(WORKER)
