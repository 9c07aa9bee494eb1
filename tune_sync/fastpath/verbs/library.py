"""Loads the library that talks to devices, and names what is missing."""

from __future__ import annotations

import errno
import importlib
import importlib.util
from typing import Any

from tune_sync.errors import StoreFullError, TransportMissingError

NAME = "ibverbs"
INSTALL = "pip install 'tune-sync[rdma]'"
SYSTEM_LIBRARY = "apt install libibverbs1 ibverbs-providers (or rdma-core of your distribution)"

# What the kernel says where a process, its container or the device may have no more of something.
_NO_MORE = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)


def no_more(what: str, error: OSError) -> StoreFullError | None:
    """The error for who may have no more of `what`; None if `error` says something else."""
    if error.errno not in _NO_MORE:
        return None
    return StoreFullError(
        f"there are no more {what}: {error}; raise what this process may have (ulimit -l, ulimit "
        "-n, rdma.max of its container's control group), or use RDMA in fewer processes"
    )


def is_installed() -> bool:
    """Whether the extra is there. Loads nothing."""
    return importlib.util.find_spec(NAME) is not None


def load() -> Any:
    """The module.

    Raises:
        TransportMissingError: The extra or the system's library is not there.
    """
    try:
        return importlib.import_module(NAME)
    except ImportError as error:
        lacking = SYSTEM_LIBRARY if is_installed() else INSTALL
        raise TransportMissingError(f"RDMA cannot be used: {error}; {lacking}") from error


def device_names() -> list[str]:
    """Names of the devices that the library can use: it needs a provider for each kind.

    Raises:
        TransportMissingError: The extra or the system's library is not there, or finds nothing.
    """
    return [device.name for device in _devices()]


def open_device(name: str) -> Any:
    """The context of a device.

    Raises:
        TransportMissingError: It is not there, or may not be used.
        StoreFullError: This process may open no more.
    """
    for device in _devices():
        if device.name == name:
            try:
                return device.open()
            except OSError as error:
                raise no_more(f"uses of RDMA device {name}", error) or TransportMissingError(
                    f"RDMA device {name} cannot be opened: {error}; let this user read and write "
                    "/dev/infiniband/uverbs*"
                ) from error
    raise TransportMissingError(f"no provider library for RDMA device {name}; {SYSTEM_LIBRARY}")


def _devices() -> list[Any]:
    verbs = load()
    try:
        return list(verbs.get_device_list())
    except OSError as error:
        raise TransportMissingError(
            f"the kernel has no RDMA: {error}; load the driver of the card, or ib_uverbs"
        ) from error
