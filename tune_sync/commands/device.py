"""Which RDMA device a command uses."""

from __future__ import annotations

import argparse

from tune_sync.commands.numbers import count
from tune_sync.fastpath.transports.rdma import wish_here
from tune_sync.fastpath.verbs.checks import LEAST_LOCKED_BYTES, Wish


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what it takes. What is not given comes from the environment, or is what fits best."""
    add = parser.add_argument
    add("--device", help="name of an RDMA device, as ibv_devices lists it (what fits best)")
    add("--port", type=count, help="its port, from 1 (what fits best)")
    add("--gid-index", type=int, help="index of the port's address (what fits best)")


def wished(arguments: argparse.Namespace, lock_bytes: int = LEAST_LOCKED_BYTES) -> Wish:
    """What `add_device_arguments` took. Raises ConfigError for a number that cannot be."""
    return wish_here(arguments.device, arguments.port, arguments.gid_index, lock_bytes)
