"""A server that speaks SFTP: `sshd`, that of this machine or Debian's, below .setup."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.stores.processes import serving
from tests.stores.seaweed import free_ports

EXTRACTED = Path(__file__).parents[2] / ".setup/openssh"
# As root it wants a user and a directory of the machine's; as another it is for that one alone.
USER = "nobody"


def config_of(directory: Path, port: int) -> str:
    return "\n".join(
        [
            f"Port {port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {directory}/host",
            f"AuthorizedKeysFile {directory}/user.pub",
            "StrictModes no",
            "PidFile none",
            "UsePAM yes",  # which is left out where it is not root; an account may be locked so
            "MaxStartups 100",
            "Subsystem sftp internal-sftp",
            "",
        ]
    )


@dataclass(frozen=True)
class SftpServer:
    """A running server.

    Attributes:
        host: "host:port".
        user: Who may log in.
        url: What is below it may be read and written.
        directory: The same on its disk.
        key_file: The key of the user's that is let in.
        host_key: The server's own, as text.
        pid: Its process.
    """

    host: str
    user: str
    url: str
    directory: Path
    key_file: Path
    host_key: str
    pid: int

    @property
    def options(self) -> dict[str, Any]:
        """As `storage_options`."""
        return {"key_filename": str(self.key_file), "host_key": self.host_key}

    def cut(self) -> int:
        """End all connections; returns how many processes those had."""
        children = psutil.Process(self.pid).children(recursive=True)
        for child in children:
            child.kill()
        psutil.wait_procs(children, timeout=10)
        return len(children)


def make_key(file: Path) -> str:
    """A new private key in `file`; returns the public one, which is in `file.pub`."""
    from cryptography.hazmat.primitives import serialization as forms  # comes with paramiko
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    plain, openssh = forms.NoEncryption(), forms.PrivateFormat.OpenSSH
    file.touch(mode=0o600)
    file.write_bytes(key.private_bytes(forms.Encoding.PEM, openssh, plain))
    public = key.public_key().public_bytes(forms.Encoding.OpenSSH, forms.PublicFormat.OpenSSH)
    file.with_suffix(".pub").write_bytes(public)
    return public.decode()


@contextmanager
def openssh(size: str = "") -> Iterator[SftpServer]:
    """Run a server as long as the block.

    Not in a directory of pytest's: those are closed to the user that it runs as.

    Args:
        size: Of its disk, as "8m"; then that is in its memory, and needs root.
    """
    installed = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    program = Path(installed or EXTRACTED / "usr/sbin/sshd")
    if not program.exists():  # CI allows no skips, and has it
        pytest.skip("sshd is not installed; scripts/test extracts Debian's")
    is_root = os.getuid() == 0
    if size and not is_root:
        pytest.skip("a disk of a size needs root")
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="openssh-") as made:
        directory = Path(made)
        (directory / "data").mkdir()
        host_key = make_key(directory / "host")
        make_key(directory / "user")
        config = directory / "sshd_config"
        config.write_text(config_of(directory, port))
        argv = [str(program), "-D", "-e", "-f", str(config)]
        if is_root:
            argv = ["setpriv", f"--reuid={USER}", "--regid=65534", "--clear-groups", *argv]
            for path in (directory, *directory.rglob("*")):
                shutil.chown(path, USER)
        if size:
            mount = f'mount -t tmpfs -o size={size},mode=777 none {directory}/data && exec "$@"'
            argv = ["unshare", "-m", "sh", "-c", mount, "sh", *argv]
        libraries = ":".join(map(str, EXTRACTED.glob("usr/lib/*-linux-*")))
        env = dict(os.environ) if installed else {**os.environ, "LD_LIBRARY_PATH": libraries}
        user = USER if is_root else psutil.Process().username()
        with serving(argv, directory / "run", port, env) as process:
            yield SftpServer(
                f"127.0.0.1:{port}", user, f"sftp://{user}@127.0.0.1:{port}{directory}/data",
                directory / "data", directory / "user", host_key, process.pid,
            )  # fmt: skip
