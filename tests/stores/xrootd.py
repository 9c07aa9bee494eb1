"""A server that speaks XRootD: `xrootd`, from Debian's xrootd-server."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.stores.processes import serving
from tests.stores.seaweed import free_ports

TOP = "/data"
# It does not run as root.
USER = "nobody"


def config_of(directory: Path, port: int) -> str:
    return "\n".join(
        [
            f"all.export {TOP}",
            f"oss.localroot {directory}/disk",
            f"all.adminpath {directory}/admin",
            f"all.pidpath {directory}/admin",
            f"xrd.port {port}",
            "xrd.network nodnr",
            "",
        ]
    )


@dataclass(frozen=True)
class XrootdServer:
    """A running server.

    Attributes:
        url: What is below it may be read and written.
        directory: The same on its disk.
    """

    url: str
    directory: Path


@contextmanager
def xrootd(address: str = "127.0.0.1") -> Iterator[XrootdServer]:
    """Run a server as long as the block.

    Not in a directory of pytest's: those are closed to the user that it runs as.
    """
    program = shutil.which("xrootd")
    if program is None:  # CI allows no skips, and has it
        pytest.skip("xrootd is not installed; Debian's package is xrootd-server")
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="xrootd-") as made:
        directory = Path(made)
        files = directory / "disk" / TOP.strip("/")
        files.mkdir(parents=True)
        (directory / "admin").mkdir()
        config = directory / "xrootd.cfg"
        config.write_text(config_of(directory, port))
        argv = [program, "-c", str(config)]
        if os.getuid() == 0:
            argv += ["-R", USER]
            for path in (directory, *directory.rglob("*")):
                shutil.chown(path, USER)
        with serving(argv, directory / "run", port):
            yield XrootdServer(f"root://{address}:{port}/{TOP}", files)
