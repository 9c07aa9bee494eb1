"""Checks of the settings of a bucket: what a library would only break off for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from tune_sync.buckets.environment import aws_settings
from tune_sync.errors import ConfigError

# pyarrow's own is 3 s, which a part of 16 MiB does not meet on a line below 40 Mbit/s.
REQUEST_TIMEOUT_S = 300.0
CONNECT_TIMEOUT_S = 10.0
# Three decades; the libraries' own numbers end above that.
MOST_TIMEOUT_S = 1e9


def timeouts(options: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds for a request, and to connect. Raises ConfigError for what is no such time."""
    return (
        _seconds(options, "request_timeout_s", REQUEST_TIMEOUT_S),
        _seconds(options, "connect_timeout_s", CONNECT_TIMEOUT_S),
    )


def _seconds(options: Mapping[str, Any], name: str, default: float) -> float:
    given = options.get(name, default)
    try:
        seconds = float(given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"storage_options {name}: seconds are needed ({error})") from error
    if not 0 < seconds <= MOST_TIMEOUT_S:  # NaN is not, either
        raise ConfigError(
            f"storage_options {name}={given!r}: seconds above zero are needed, "
            f"{MOST_TIMEOUT_S:.0f} at most"
        )
    return seconds


def check_s3(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for a setting that cannot be right, by its name: it may be a secret."""
    for name in ("anon", "sign_payload"):
        if not isinstance(options.get(name), (bool, type(None))):
            raise ConfigError(f"storage_options {name}={options[name]!r}: True or False is needed")
    for name, value in aws_settings(options).items():
        if value != value.strip() or any(ord(c) < 32 or ord(c) == 127 for c in value):
            raise ConfigError(
                f"{name} begins or ends with a blank or a newline, or has one that cannot be "
                "seen, as a secret of Kubernetes has that was made of a file: leave it out"
            )


def is_address(endpoint_url: str) -> bool:
    """Whether it has a host, and if it has a port, a number."""
    try:
        parts = urlsplit(endpoint_url)
        return bool(parts.hostname) and (parts.port or 1) > 0 and not set(parts.netloc) & set(" \t")
    except ValueError:
        return False
