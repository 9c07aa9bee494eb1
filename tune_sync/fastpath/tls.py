"""Files for TLS between the hosts of a run: where they are, and whether they can be used."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tune_sync.errors import ConfigError

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class Tls:
    """Files for TLS, in which each side shows a certificate.

    Attributes:
        certificate: Of this host, with those between it and the authority.
        key: Its private key.
        authority: The certificates of who may sign; use one that signs for this run alone, as names
            are not compared.
    """

    certificate: Path
    key: Path
    authority: Path

    @property
    def paths(self) -> tuple[str, str, str]:
        """Its files, as they travel."""
        return os.fspath(self.certificate), os.fspath(self.key), os.fspath(self.authority)

    def context(self, *, is_server: bool) -> ssl.SSLContext:
        """What wraps connections.

        Raises:
            ConfigError: A file cannot be read, or is none of these, or the key has a pass phrase.
        """
        import ssl  # not at the top: most who read settings open no connection

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        for path in self.paths:
            _check_readable(path)  # what the library says names no file
        try:
            context.load_cert_chain(self.certificate, self.key, self._no_pass_phrase)
            context.load_verify_locations(self.authority)
        except OSError as error:
            raise ConfigError(
                f"{self} cannot be used: {error}; give files in PEM format"
            ) from error
        return context

    def _no_pass_phrase(self) -> str:
        """Else the library asks on the terminal, and waits."""
        raise ConfigError(
            f"{self.key} has a pass phrase, and nobody is there to type it; give a key without, in "
            "a file that only this user can read"
        )


def _check_readable(path: str) -> None:
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError as error:
        raise ConfigError(
            f"{path}, which is needed for TLS, cannot be read: {error.strerror}; put it there, and "
            "let this user read it"
        ) from error
