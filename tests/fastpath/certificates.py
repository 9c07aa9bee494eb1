"""An authority, and a certificate that it signed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tune_sync.fastpath.transports import Tls

_NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def make_certificates(folder: Path) -> Tls:
    """Make them with `openssl`, valid for a day."""
    _openssl(
        folder, "req", "-x509", *_NEW_KEY, "-keyout", "authority.key", "-out", "authority.pem",
        "-days", "1", "-subj", "/CN=authority",
    )  # fmt: skip
    _openssl(
        folder, "req", "-x509", *_NEW_KEY, "-keyout", "host.key", "-out", "host.pem",
        "-CA", "authority.pem", "-CAkey", "authority.key", "-days", "1", "-subj", "/CN=host",
    )  # fmt: skip
    return Tls(folder / "host.pem", folder / "host.key", folder / "authority.pem")


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
