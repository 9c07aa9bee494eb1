"""How much shared memory checkpoints need. Pure arithmetic."""

from __future__ import annotations

import math

from tune_sync.errors import ConfigError

# Parameters in float32 and the two moments of Adam. Others differ: count yours, or save once.
BYTES_PER_PARAMETER = 12
# One is filled while the other is sent or read.
SLOTS = 2
# For what else lives in shared memory, and for checkpoints that grow a little.
SPARE = 0.15
# Without a limit of the user's, less than that is as good as none: Docker's default is 64 MB.
LEAST_BYTES = 256 << 20


def shared_memory_bytes(
    parameter_count: int,
    *,
    host_count: int = 1,
    slot_count: int = SLOTS,
    bytes_per_parameter: float = BYTES_PER_PARAMETER,
    spare: float = SPARE,
) -> int:
    """Shared memory that each host needs, in bytes.

    With `spare=0` it is the `memory_limit` for checkpoints there.

    Args:
        parameter_count: Parameters of the model.
        host_count: Hosts that hold equal parts of each checkpoint.
        slot_count: Checkpoints kept in memory at a time.
        bytes_per_parameter: Bytes in a checkpoint for each parameter.
        spare: Part of the result that stays free.

    Raises:
        ConfigError: A count below 1, a part that is not below 1, or more than any memory has.
    """
    if min(parameter_count, host_count, slot_count) < 1 or bytes_per_parameter <= 0:
        raise ConfigError("counts of parameters, hosts and slots start at 1; give larger ones")
    if not math.isfinite(parameter_count * bytes_per_parameter * slot_count):
        raise ConfigError(
            f"{parameter_count} parameters of {bytes_per_parameter} bytes: no memory has so many"
        )
    if not 0 <= spare < 1:
        raise ConfigError(f"spare={spare} is not a part of the whole; give one from 0 to below 1")
    share_bytes = parameter_count * bytes_per_parameter / host_count
    return math.ceil(share_bytes * slot_count / (1 - spare))


def shortage(limit_bytes: int, free_bytes: int, total_bytes: int, others_bytes: int = 0) -> str:
    """Why shared memory of a host does not hold so much, and what to do; "" if it does.

    Args:
        limit_bytes: Most that checkpoints may take; 0: a part of what there is.
        free_bytes: Of the host's shared memory: free, or taken by checkpoints already.
        total_bytes: The same.
        others_bytes: What others there may take besides: Ray's object store.
    """
    need_bytes = limit_bytes or LEAST_BYTES
    spare_bytes = int(total_bytes * SPARE)
    if min(free_bytes, total_bytes - others_bytes) - spare_bytes >= need_bytes:
        return ""
    used_bytes = total_bytes - free_bytes
    size_mb = math.ceil((need_bytes + max(used_bytes, others_bytes)) / (1 - SPARE) / 2**20)
    asked = f"memory_limit={limit_bytes}" if limit_bytes else f"checkpoints ({need_bytes} bytes)"
    return (
        f"shared memory has {total_bytes} bytes, {free_bytes} of them free"
        + (f" and {others_bytes} for Ray's object store" if others_bytes else "")
        + f", too little for {asked} and {SPARE:.0%} to spare; make it {size_mb} MB "
        f"(a container: --shm-size={size_mb}m; else mount -o remount,size={size_mb}m /dev/shm)"
        + (", or set a smaller memory_limit" if limit_bytes else "")
    )
