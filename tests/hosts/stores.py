"""Servers of buckets on a host of their own, and a proxy there that does what it is told."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.bed import Cluster
from tests.hosts.searches import DRIVERS
from tests.stores.google import GoogleServer, account, google_argv
from tests.stores.proxy import proxy_argv, write_faults
from tests.stores.seaweed import KEY, SECRET, S3Server, config_file, weed_argv

HOST = "store"
PORTS = (8333, 9333, 9340, 8888, 23646)
PROXY_PORT = 8444
READY_TIMEOUT_S = 90.0
LOOK = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1)"
FAULTS = "/tmp/faults"
GOOGLE_PORT, GOOGLE_FRONT_PORT = 4443, 4444
ACCOUNT = "/tmp/account.json"
MAKE_BUCKET = "import sys; from tests.stores.google import make_bucket; make_bucket(sys.argv[1])"


def start_store(cluster: Cluster, users: Mapping[str, Sequence[str]] | None = None) -> str:
    """Start the server on the bare host "store"; returns its URL. See `seaweed` for `users`."""
    address = cluster.addresses[HOST]
    cluster.exec(HOST, ["mkdir", "-p", "/tmp/weed"])
    argv = weed_argv(Path("/tmp/weed"), address, PORTS)
    if users is not None:
        config_file(cluster.host(HOST).path("/tmp/weed"), users)
        argv += ["-s3.config=/tmp/weed/users.json", "-s3.autoCreateBucket=false"]
    env = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    with open(cluster.dir / "store.log", "wb") as log:
        cluster.popen(HOST, argv, env, stdout=log, stderr=log)
    wait_ready(cluster, PORTS[0])
    return f"http://{address}:{PORTS[0]}"


def start_google(cluster: Cluster) -> GoogleServer:
    """Start a server of Google's protocol on the host "store", with a bucket "bucket".

    See `show_account` for the key.
    """
    address = cluster.addresses[HOST]
    server, front = google_argv(address, GOOGLE_PORT, GOOGLE_FRONT_PORT)
    front[0] = str(cluster.python)
    for argv, port in ((server, GOOGLE_PORT), (front, GOOGLE_FRONT_PORT)):
        with open(cluster.dir / f"google-{port}.log", "wb") as log:
            cluster.popen(HOST, argv, stdout=log, stderr=log)
        wait_ready(cluster, port)
    url = f"http://{address}:{GOOGLE_FRONT_PORT}"
    cluster.exec(HOST, [str(cluster.python), "-c", MAKE_BUCKET, url])
    account(cluster.dir / "account.json", url)
    return GoogleServer(url, Path(ACCOUNT))


def show_account(cluster: Cluster, *hosts: str) -> None:
    """Put the key where `start_google` says, on hosts that are new."""
    for name in hosts:
        cluster.host(name).path(ACCOUNT).write_text((cluster.dir / "account.json").read_text())


@contextmanager
def notes_and_bucket(where: str, hosts: Iterable[str]) -> Iterator[tuple[Cluster, Path]]:
    """A head that only drives, two workers, and a store, with a bucket "bucket", on its own host.

    Args:
        where: A directory of these hosts that outlives them.
        hosts: Which have it.

    Yields:
        The cluster, and this machine's side of that directory.
    """
    notes = Path(tempfile.mkdtemp(prefix="notes-"))
    with Cluster(
        worker_count=2, bare_hosts=[HOST], disk_bytes=2 << 30,
        mounts={name: {where: notes} for name in hosts},
        env=S3Server(f"http://{HOST}:{PORTS[0]}").env,
    ) as cluster:  # fmt: skip
        start_store(cluster)
        spec = {"name": "", "make_bucket": "bucket", "keys_of": "bucket"}
        cluster.drive("head", DRIVERS / "bucket.py", [json.dumps(spec)])
        yield cluster, notes
    shutil.rmtree(notes)


def start_proxy(cluster: Cluster, endpoint_url: str) -> tuple[str, Path]:
    """Start a proxy there; returns its URL, and the file for `write_faults` on this machine."""
    address, faults = cluster.addresses[HOST], cluster.host(HOST).path(FAULTS)
    write_faults(faults)
    argv = proxy_argv(endpoint_url, FAULTS, address, PROXY_PORT)
    argv[0] = str(cluster.python)
    with open(cluster.dir / "proxy.log", "wb") as log:
        cluster.popen(HOST, argv, stdout=log, stderr=log)
    wait_ready(cluster, PROXY_PORT)
    return f"http://{address}:{PROXY_PORT}", faults


def wait_ready(cluster: Cluster, port: int) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    look = [str(cluster.python), "-c", LOOK, cluster.addresses[HOST], str(port)]
    while cluster.exec("head", look, check=False).returncode:
        if time.monotonic() > deadline_s:
            logs = [path.read_text()[-2000:] for path in sorted(cluster.dir.glob("*o*.log"))]
            raise TimeoutError("\n".join(logs))
        time.sleep(0.1)
