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


def shared_memory_bytes(
    parameter_count: int,
    *,
    host_count: int = 1,
    slot_count: int = SLOTS,
    bytes_per_parameter: float = BYTES_PER_PARAMETER,
    spare: float = SPARE,
) -> int:
    """Shared memory that each host needs, in bytes.

    Args:
        parameter_count: Parameters of the model.
        host_count: Hosts that hold equal parts of each checkpoint.
        slot_count: Checkpoints kept in memory at a time.
        bytes_per_parameter: Bytes in a checkpoint for each parameter.
        spare: Part of the result that stays free.

    Raises:
        ConfigError: A count below 1, or a part that is not below 1.
    """
    if min(parameter_count, host_count, slot_count) < 1 or bytes_per_parameter <= 0:
        raise ConfigError("counts of parameters, hosts and slots start at 1; give larger ones")
    if not 0 <= spare < 1:
        raise ConfigError(f"spare={spare} is not a part of the whole; give one from 0 to below 1")
    share_bytes = parameter_count * bytes_per_parameter / host_count
    return math.ceil(share_bytes * slot_count / (1 - spare))
