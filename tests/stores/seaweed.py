"""A real S3 server for tests: SeaweedFS, from PyPI, on an address of this machine or of a host."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEY, SECRET = "testkey", "testsecret"
READY_TIMEOUT_S = 90.0
# The environment with the lowest Ray has none of its own.
PROGRAMS = (
    Path(sys.executable).with_name("weed"),
    Path(__file__).parents[2] / ".venv/bin/weed",
    Path(shutil.which("weed") or "weed"),
)


@dataclass(frozen=True)
class S3Server:
    """A running server.

    Attributes:
        endpoint_url: Where it answers.
        env: What its users need in their environment.
    """

    endpoint_url: str

    @property
    def env(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint_url, "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip

    @property
    def options(self) -> dict[str, str]:
        """The same as `storage_options`."""
        return {
            "key": KEY, "secret": SECRET, "endpoint_url": self.endpoint_url, "region": "us-east-1"
        }  # fmt: skip


def s3(server: S3Server) -> Any:
    """A client of the server that is none of ours."""
    import botocore.session  # not at the top: the lowest environment has no client of S3

    session = botocore.session.get_session()
    session.set_credentials(server.options["key"], server.options["secret"])
    return session.create_client("s3", "us-east-1", endpoint_url=server.endpoint_url)


def make_bucket(server: S3Server, name: str = "bucket") -> None:
    """Make a bucket, by requests that may be tried again after they did their work."""
    client = s3(server)
    with suppress(client.exceptions.BucketAlreadyOwnedByYou):
        client.create_bucket(Bucket=name)


def weed_argv(directory: Path, address: str, ports: Sequence[int]) -> list[str]:
    """The command; `ports` are those of S3, master, volume, filer, admin."""
    weed = next(filter(Path.is_file, PROGRAMS))
    names = ("s3.port", "master.port", "volume.port", "filer.port", "admin.port")
    given = [f"-{name}={port}" for name, port in zip(names, ports, strict=False)]
    return [
        str(weed), "mini", f"-dir={directory}", f"-ip={address}", f"-ip.bind={address}",
        "-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0", *given,
    ]  # fmt: skip


def config_file(directory: Path, users: Mapping[str, Sequence[str]]) -> Path:
    """Who there is: each name is the key, too, and `NAME-secret` the secret."""
    names = {KEY: (SECRET, ["Admin", "Read", "Write", "List", "Tagging"])}
    names |= {name: (f"{name}-secret", list(actions)) for name, actions in users.items()}
    identities = [
        {"name": name, "actions": actions,
         "credentials": [{"accessKey": name, "secretKey": secret}]}
        for name, (secret, actions) in names.items()
    ]  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "users.json"
    file.write_text(json.dumps({"identities": identities}))
    return file


@contextmanager
def seaweed(
    directory: Path, address: str = "127.0.0.1", users: Mapping[str, Sequence[str]] | None = None
) -> Iterator[S3Server]:
    """Run a server as long as the block.

    Args:
        directory: Where it keeps what it stores.
        address: Where it answers.
        users: More users, and what each may do. Then no bucket is made by itself, as it is
            without, when an object is put.
    """
    port, *others = free_ports(5)
    argv = weed_argv(directory, address, [port, *others])
    if users is not None:
        argv += [f"-s3.config={config_file(directory, users)}", "-s3.autoCreateBucket=false"]
    env = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "HOME": str(directory)}
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "log"
    with open(log, "wb") as out:
        process = subprocess.Popen(argv, env=env, stdout=out, stderr=out, cwd=directory)
    try:
        wait_ready(address, port, log)
        yield S3Server(f"http://{address}:{port}")
    finally:
        process.kill()
        process.wait()


def wait_ready(address: str, port: int, log: Path) -> None:
    """Return when the server takes connections."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        with socket.socket() as trial:
            trial.settimeout(1)
            if not trial.connect_ex((address, port)):
                return
        time.sleep(0.1)
    raise TimeoutError(f"{address}:{port} does not answer: {log.read_text()[-2000:]}")


def free_ports(count: int) -> list[int]:
    """Ports that are free, as are those 10,000 above: SeaweedFS takes both of each."""
    found: list[int] = []
    for port in range(11000 + time.time_ns() // 1000 % 9000, 22000):
        if all(_is_free(p) for p in (port, port + 10_000)) and _is_mine(port):
            found.append(port)
        if len(found) == count:
            return found
    raise OSError("no free ports")


# A server takes its port later than it is looked for: until then a name says whose it is. It goes
# with this process.
_MINE: list[socket.socket] = []


def _is_mine(port: int) -> bool:
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0tune_sync-tests-{port}")
    except OSError:
        name.close()
        return False
    _MINE.append(name)
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
