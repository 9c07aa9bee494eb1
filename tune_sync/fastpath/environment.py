"""What the environment says to the fast path and to commands. Read nowhere else in `fastpath`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from tune_sync.errors import ConfigError

TOKEN = "TUNE_SYNC_TOKEN"
MEMORY_LIMIT = "TUNE_SYNC_MEMORY_LIMIT"
MAX_CHECKPOINTS = "TUNE_SYNC_MAX_CHECKPOINTS_IN_MEMORY"
TRANSPORT = "TUNE_SYNC_TRANSPORT"
TRANSPORT_REQUIRED = "TUNE_SYNC_TRANSPORT_REQUIRED"
PORTS = "TUNE_SYNC_PORTS"
RDMA_DEVICE = "TUNE_SYNC_RDMA_DEVICE"
RDMA_PORT = "TUNE_SYNC_RDMA_PORT"
RDMA_GID_INDEX = "TUNE_SYNC_RDMA_GID_INDEX"


def token() -> bytes:
    """What both hosts have to know. Of the environment, as command lines are seen by others.

    Raises:
        ConfigError: It is not set.
    """
    found = os.environ.get(TOKEN, "")
    if not found:
        raise ConfigError(
            f"{TOKEN} is not set; set it to the same random text on both hosts, such as what "
            "`openssl rand -hex 16` prints"
        )
    return found.encode()


def number(name: str, default: int | None, *, least: int = 1) -> int | None:
    """A whole number.

    Args:
        name: Of the variable.
        default: Where it is not set.
        least: 0 or 1.

    Raises:
        ConfigError: It is something else.
    """
    found = os.environ.get(name, "")
    if not found:
        return default
    if not found.isascii() or not found.isdigit() or int(found) < least:
        what = "a whole number above zero" if least else "a whole number, from 0,"
        raise ConfigError(f"{name}={found!r}: {what} is needed, in digits")
    return int(found)


def text(name: str) -> str | None:
    """What it says; None where it is not set, or says nothing."""
    return os.environ.get(name) or None


def choice(name: str, choices: Sequence[str]) -> str:
    """One of these; "" where it is not set.

    Raises:
        ConfigError: It is something else.
    """
    found = os.environ.get(name, "")
    if found and found not in choices:
        raise ConfigError(f"{name}={found!r}: give one of {', '.join(choices)}")
    return found


def flag(name: str) -> bool:
    """Whether it is 1; not where it is 0, or not set.

    Raises:
        ConfigError: It is something else.
    """
    found = os.environ.get(name, "")
    if found not in ("", "0", "1"):
        raise ConfigError(f"{name}={found!r}: give 1 or 0")
    return found == "1"


def otherwise(wanted: Mapping[str, str], *, or_unset: bool) -> list[str]:
    """Names of variables that do not say what is wanted; "" stands for one that is not set.

    Args:
        wanted: Name -> value.
        or_unset: Whether one that is not set and should be counts, too.
    """

    def says_otherwise(name: str, value: str) -> bool:
        if name in os.environ:  # also as "": libraries ask whether it is set
            return not value or os.environ[name] != value
        return bool(value) and or_unset

    return [name for name, value in wanted.items() if says_otherwise(name, value)]


def tell_library(wanted: Mapping[str, str]) -> None:
    """Set what a library reads when it is loaded. What says something already stays as it is."""
    for name, value in wanted.items():
        if value:
            os.environ.setdefault(name, value)
