"""A server that speaks as Azure's blob storage does: azurite, from npm."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.stores.processes import serving
from tests.stores.seaweed import free_ports

REPOSITORY = Path(__file__).parents[2]
# Azurite's own, which everybody knows.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class AzureServer:
    """A running server.

    Attributes:
        endpoint_url: Where it answers.
    """

    endpoint_url: str

    @property
    def connection(self) -> str:
        return (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
            f"BlobEndpoint={self.endpoint_url}/{ACCOUNT};"
        )

    @property
    def env(self) -> dict[str, str]:
        """What its users need in their environment: obstore's, and adlfs's."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": self.endpoint_url,
            "AZURE_STORAGE_CONNECTION_STRING": self.connection,
        }  # fmt: skip

    def options(self, engine: str) -> dict[str, Any]:
        """The same as `storage_options`."""
        if engine == "obstore":
            return {
                "engine": engine, "account_name": ACCOUNT, "account_key": KEY,
                "endpoint": f"{self.endpoint_url}/{ACCOUNT}",
            }  # fmt: skip
        return {"engine": engine, "connection_string": self.connection}


@contextmanager
def azurite(directory: Path) -> Iterator[AzureServer]:
    """Run a server as long as the block; it has a container "bucket"."""
    (port,) = free_ports(1)
    program = REPOSITORY / ".setup/node_modules/.bin/azurite-blob"
    argv = [
        str(program), "--silent", "--skipApiVersionCheck", "--inMemoryPersistence",
        "--disableTelemetry", "--blobHost", "127.0.0.1", "--blobPort", str(port),
    ]  # fmt: skip
    with serving(argv, directory, port, dict(os.environ)):
        server = AzureServer(f"http://127.0.0.1:{port}")
        make_container(server)
        yield server


def make_container(server: AzureServer) -> None:
    from azure.storage.blob import BlobServiceClient  # not in the lowest environment

    BlobServiceClient.from_connection_string(server.connection).create_container("bucket")
