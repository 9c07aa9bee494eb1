"""`tune-sync doctor`: what of RDMA works on this host, and how to get the rest."""

from __future__ import annotations

import argparse
from pathlib import Path

from tune_sync.behind.replica_transports import LOCK_BYTES
from tune_sync.commands.device import add_device_arguments, wished
from tune_sync.commands.numbers import size_bytes
from tune_sync.fastpath import mooncake_engine
from tune_sync.fastpath.transport_names import MOONCAKE, RDMA
from tune_sync.fastpath.verbs import checks as rdma
from tune_sync.fastpath.verbs.checks import Check, Wish
from tune_sync.fastpath.verbs.ports import DEV, SYS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what it takes."""
    parser.add_argument(
        "--transport", choices=(RDMA, MOONCAKE), default=RDMA, help=f"what shall work ({RDMA})"
    )
    add_device_arguments(parser)
    parser.add_argument(
        "--lock", type=size_bytes, default=LOCK_BYTES, metavar="SIZE",
        help="memory that will be pinned; what a node of a run pins (72MiB), 1GiB for the bench",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Print each check, and what to do about those that are not good. 0: all are."""
    return 0 if tell(wished(arguments, arguments.lock), transport=arguments.transport) else 1


def tell(wish: Wish, sys: Path = SYS, dev: Path = DEV, *, transport: str = RDMA) -> bool:
    """Print each check, and return whether all are good.

    Args:
        wish: What has to be used.
        sys: Where the kernel describes devices.
        dev: Where programs get at them.
        transport: What shall work: "rdma", or "mooncake".
    """
    checks = mooncake_engine.checks if transport == MOONCAKE else rdma.checks
    name, is_good = "Mooncake" if transport == MOONCAKE else "RDMA", True
    for check in checks(wish, sys, dev):
        is_good = is_good and check.is_good
        print(f"{_mark(check)} {check.name}: {_found(check)}", flush=True)
        if check.remedy:
            print(f"        to do: {check.remedy}")
    print(f"{name} {'can' if is_good else 'cannot'} be used here")
    return is_good


def _mark(check: Check) -> str:
    if check.needs:
        return "-      "
    return "ok     " if check.is_good else "MISSING"


def _found(check: Check) -> str:
    return f"{check.found}, as it needs: {check.needs}" if check.needs else check.found
