"""`tune-sync sizing`: shared memory that checkpoints need, compared with what this host has."""

from __future__ import annotations

import argparse

from tune_sync.commands.numbers import count, readable
from tune_sync.fastpath.folder import SHARED_MEMORY
from tune_sync.fastpath.pages import memory_available_bytes, room_bytes
from tune_sync.fastpath.sizing import BYTES_PER_PARAMETER, SLOTS, SPARE, shared_memory_bytes

ENOUGH, TOO_LITTLE = 0, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what it takes."""
    add = parser.add_argument
    add("--parameters", type=count, required=True, help="of the model, as 7e9")
    add("--hosts", type=count, default=1, help="that hold equal parts of each checkpoint (1)")
    add("--slots", type=count, default=SLOTS, help=f"checkpoints kept in memory ({SLOTS})")
    add(
        "--bytes-per-parameter", type=float, default=BYTES_PER_PARAMETER,
        help=f"in a checkpoint ({BYTES_PER_PARAMETER}: float32 and Adam's two moments)",
    )  # fmt: skip
    add("--spare", type=float, default=SPARE, help=f"part that stays free ({SPARE})")
    add(
        "--no-check", action="store_true",
        help=f"do not compare with {SHARED_MEMORY} of this host",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Print it. The status is 1 if this host has less."""
    need_bytes = shared_memory_bytes(
        arguments.parameters, host_count=arguments.hosts, slot_count=arguments.slots,
        bytes_per_parameter=arguments.bytes_per_parameter, spare=arguments.spare,
    )  # fmt: skip
    print(f"shared memory for each host: {readable(need_bytes)} ({need_bytes} bytes)")
    if arguments.no_check:
        return ENOUGH
    free_bytes, total_bytes = room_bytes(SHARED_MEMORY)
    print(f"{SHARED_MEMORY} here: {readable(total_bytes)}, {readable(free_bytes)} of it free")
    left_bytes = memory_available_bytes()
    if left_bytes >= 0:
        print(f"memory of this machine, or its container or job: {readable(left_bytes)} left")
    if 0 <= left_bytes < need_bytes:
        print(
            f"too little memory by {readable(need_bytes - left_bytes)}: give it more, or spread it "
            "over more hosts"
        )
    if free_bytes >= need_bytes:
        return TOO_LITTLE if 0 <= left_bytes < need_bytes else ENOUGH
    missing_bytes = need_bytes - free_bytes
    size_mb = -(-(total_bytes + missing_bytes) // (1 << 20))
    print(
        f"too little by {readable(missing_bytes)}: free some, or mount -o remount,size={size_mb}m "
        f"{SHARED_MEMORY} (a container: --shm-size={size_mb}m), or spread it over more hosts"
    )
    return TOO_LITTLE
